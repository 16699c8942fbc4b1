package cni

import (
	"strings"
	"unicode/utf8"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// podArgs is what CNI_ARGS says of the pod; it is empty for a container that is not of Kubernetes.
type podArgs struct{ Namespace, Name, UID string }

// parseArgs reads CNI_ARGS: KEY=VALUE;KEY=VALUE. An unknown key is an error unless IgnoreUnknown is
// true, as in the CNI library.
func parseArgs(text string) (a podArgs, err error) {
	var unknown string
	ignore := false
	for pair := range strings.SplitSeq(text, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return a, fail(codeEnvironment, "CNI_ARGS: %.64q is not KEY=VALUE", pair)
		}
		var to *string
		switch key {
		case "K8S_POD_NAMESPACE":
			to = &a.Namespace
		case "K8S_POD_NAME":
			to = &a.Name
		case "K8S_POD_UID":
			to = &a.UID
		case "K8S_POD_INFRA_CONTAINER_ID":
			continue
		case "IgnoreUnknown":
			switch strings.ToLower(value) {
			case "1", "true":
				ignore = true
			case "0", "false":
				ignore = false
			default:
				return a, fail(codeEnvironment, "CNI_ARGS: IgnoreUnknown is %.64q, want true or false", value)
			}
			continue
		default:
			unknown = key
			continue
		}
		if !pod.IsName(value) {
			return a, fail(codeEnvironment, "CNI_ARGS: the value of %.64q is %.64q: at most 253 bytes of printable text are possible", key, value)
		}
		*to = value
	}
	if unknown != "" && !ignore {
		return a, fail(codeEnvironment, "CNI_ARGS: unknown key %.64q, and IgnoreUnknown is not set", unknown)
	}
	return a, nil
}

// environment is what the runtime passes in environment variables (section 2: Parameters).
type environment struct {
	command string
	key     pod.Key
	netns   string
	args    string
}

// parseEnvironment checks the variables that the command needs.
func parseEnvironment(getenv func(string) string) (e environment, err error) {
	e = environment{
		command: getenv("CNI_COMMAND"),
		key:     pod.Key{Container: getenv("CNI_CONTAINERID"), Interface: getenv("CNI_IFNAME")},
		netns:   getenv("CNI_NETNS"),
		args:    getenv("CNI_ARGS"),
	}
	switch e.command {
	case "ADD", "CHECK":
		if !isPath(e.netns) {
			return e, fail(codeEnvironment, "CNI_NETNS is %.64q: it must be an absolute path", e.netns)
		}
	case "DEL":
	case "GC", "STATUS", "VERSION":
		return e, nil
	case "":
		return e, fail(codeEnvironment, "CNI_COMMAND is not set: container runtimes run this program")
	default:
		return e, fail(codeEnvironment, "CNI_COMMAND is %.64q: it must be ADD, DEL, CHECK, GC, STATUS or VERSION", e.command)
	}
	if err := pod.CheckContainer(e.key.Container); err != nil {
		return e, fail(codeEnvironment, "CNI_CONTAINERID: %v", err)
	}
	if err := pod.CheckInterface(e.key.Interface); err != nil {
		return e, fail(codeEnvironment, "CNI_IFNAME: %v", err)
	}
	return e, nil
}

const maxPath = 4096 // bytes: PATH_MAX

func isPath(s string) bool {
	return strings.HasPrefix(s, "/") && len(s) < maxPath && utf8.ValidString(s)
}
