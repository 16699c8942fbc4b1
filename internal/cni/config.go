package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/cnispec"
	"github.com/tcpilot/tcpilot/internal/defaults"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

const (
	defaultTimeout = time.Second
	maxTimeout     = 10 * time.Second // also the main plugin's default, because it is slow on a busy kernel
	maxConfig      = 4 << 20          // bytes: annotations and the results of other plugins are large
)

var versions = cnispec.Versions

// since is the first version that has a command, if that is not the first of all.
var since = map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

func knows(version, command string) bool {
	at := slices.Index(versions, version)
	return at >= 0 && at >= slices.Index(versions, since[command])
}

// config is the part of the network configuration that all commands read. Other keys are allowed,
// because runtimes add some.
type config struct {
	Version string        `json:"cniVersion"`
	Network string        `json:"name"`
	Dir     podrecord.Dir `json:"dir"`
	Socket  string        `json:"socket"`
	Timeout string        `json:"timeout"`
	// Uninstalled is set in the configuration that stays for the end of pods when the main plugin is uninstalled (cnispec.UninstalledKey).
	Uninstalled bool `json:"uninstalled"`

	// These are decoded by the commands that use them, so that a mistake in them does not prevent
	// DEL.
	Runtime    json.RawMessage `json:"runtimeConfig"`
	PrevResult json.RawMessage `json:"prevResult"`
	IPAM       json.RawMessage `json:"ipam"` // if set, this is the main plugin
	Valid      json.RawMessage `json:"cni.dev/valid-attachments"`

	timeout time.Duration // of the command: Timeout, or the default
	wait    time.Duration // for the daemon, as a part of timeout
}

// parseConfig reads the network configuration. With an error, what could be read is returned too.
func parseConfig(data []byte) (c config, err error) {
	err = decode(data, "", &c)
	if c.Dir == "" {
		c.Dir = defaults.PodsDir
	}
	if c.Socket == "" {
		c.Socket = defaults.Socket
	}
	c.timeout, c.wait = defaultTimeout, defaultTimeout
	if c.main() {
		c.timeout = maxTimeout
	}
	switch {
	case err != nil:
		return c, err
	case !pod.IsIdentifier(c.Network):
		return c, fail(codeConfig, "the network configuration's name is %q: it must be a letter or digit, then letters, digits, _ . and -", c.Network)
	case !filepath.IsAbs(string(c.Dir)):
		return c, fail(codeConfig, "the network configuration's dir is %q: it must be an absolute path", c.Dir)
	case !filepath.IsAbs(c.Socket):
		return c, fail(codeConfig, "the network configuration's socket is %q: it must be an absolute path", c.Socket)
	case c.Timeout == "":
		return c, nil
	}
	c.timeout, err = time.ParseDuration(c.Timeout)
	if err != nil || c.timeout <= 0 || c.timeout > maxTimeout {
		return c, fail(codeConfig, "the network configuration's timeout is %q: it must be more than 0 and at most %v, for example 1s", c.Timeout, maxTimeout)
	}
	c.wait = c.timeout
	return c, nil
}

// runtimeConfig is what the runtime adds for the capabilities that the configuration names
// (CONVENTIONS.md of the CNI repository). Keys are found in any case: containerd writes EgressRate.
type runtimeConfig struct {
	Bandwidth struct {
		Ingress uint64 `json:"ingressRate"` // bits per second
		Egress  uint64 `json:"egressRate"`
	} `json:"bandwidth"`
	Cgroup      string            `json:"cgroupPath"`
	Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`
}

func (c *config) runtime() (r runtimeConfig, err error) {
	if c.Runtime == nil {
		return r, nil
	}
	return r, decode(c.Runtime, "runtimeConfig", &r)
}

// validKey is the key of the attachments that GC keeps (section 2: GC).
const validKey = "cni.dev/valid-attachments"

// validAttachments are those that GC keeps. null is an empty list, but without the key nothing
// can be said of any attachment.
func (c *config) validAttachments() (keys []pod.Key, err error) {
	if c.Valid == nil {
		return nil, fail(codeConfig, "the network configuration has no %s", validKey)
	}
	return keys, decode(c.Valid, validKey, &keys)
}

// withValid returns a network configuration with more attachments in its list of valid ones.
func withValid(conf []byte, more []pod.Key) ([]byte, error) {
	if len(more) == 0 {
		return conf, nil
	}
	var keys map[string]json.RawMessage
	if err := decode(conf, "", &keys); err != nil {
		return nil, err
	}
	// The second key is from an early draft of the specification; libcni passes both.
	for _, key := range []string{validKey, "cni.dev/attachments"} {
		var list []any
		if keys[key] == nil {
			continue
		}
		if err := decode(keys[key], key, &list); err != nil {
			return nil, err
		}
		for _, k := range more {
			list = append(list, k)
		}
		var err error
		if keys[key], err = json.Marshal(list); err != nil {
			return nil, err
		}
	}
	return json.Marshal(keys)
}

// main reports whether this is the main plugin, which makes the interface, and not a chained one.
func (c *config) main() bool { return isSet(c.IPAM) }

func isSet(m json.RawMessage) bool { return m != nil && string(m) != "null" }

// hasPrevResult returns what is wrong if there is no previous result.
func (c *config) hasPrevResult() error {
	if isSet(c.PrevResult) {
		return nil
	}
	if c.main() {
		return fail(codeConfig, "the network configuration has no prevResult: CHECK needs the result of ADD")
	}
	return fail(codeConfig, "the network configuration has no prevResult, and no ipam: put tcpilot-cni after the plugin that makes the interface, or let it make the interface itself").
		because("docs/pods.md has both configurations")
}

// checkPlace returns what is wrong with the plugin's place in the chain, for ADD.
func (c *config) checkPlace() error {
	if !c.main() {
		return c.hasPrevResult()
	}
	if isSet(c.PrevResult) {
		return fail(codeConfig, "the network configuration has ipam, and another plugin has made an interface already: with ipam, tcpilot-cni has to be the first plugin")
	}
	return nil
}

// result is the result that a chained plugin was given, and returns unchanged except for the
// version, which has to be the configuration's (section 5: ADD Success).
func (c *config) result() (json.RawMessage, error) {
	var keys map[string]json.RawMessage
	if err := decode(c.PrevResult, "prevResult", &keys); err != nil {
		return nil, err
	}
	var version string
	if json.Unmarshal(keys["cniVersion"], &version) == nil && version == c.Version {
		return c.PrevResult, nil
	}
	// Up to 0.4.0, libraries left the version out.
	keys["cniVersion"], _ = json.Marshal(c.Version)
	return json.Marshal(keys)
}

// addresses are those that prevResult has for the interface. It is not an error if another plugin wrote
// the result in a form of its own: then the record has no addresses.
func (r *request) addresses() (list []netip.Prefix) {
	var result struct {
		Interfaces []struct{ Name, Sandbox string }
		IPs        []struct {
			Interface *int
			Address   netip.Prefix
		}
	}
	if json.Unmarshal(r.PrevResult, &result) != nil {
		return nil
	}
	for _, ip := range result.IPs {
		if at := ip.Interface; at != nil && *at >= 0 && *at < len(result.Interfaces) {
			if i := result.Interfaces[*at]; i.Name != r.key.Interface || i.Sandbox == "" {
				continue
			}
		}
		if ip.Address.IsValid() {
			list = append(list, ip.Address)
		}
	}
	return list
}

// foreignKeys are keys of a network configuration that are for the container runtime or its library.
var foreignKeys = []string{"type", "args", "capabilities", "cni.dev/attachments"}

// mistypedKeys says which keys of the network configuration are unknown and like known ones. Others are
// not mistakes, because runtimes add some.
func mistypedKeys(data []byte) (list []string) {
	var keys map[string]json.RawMessage
	if json.Unmarshal(data, &keys) != nil {
		return nil
	}
	known := slices.Clone(foreignKeys)
	for _, t := range []reflect.Type{reflect.TypeFor[config](), reflect.TypeFor[mainConfig]()} {
		for i := range t.NumField() {
			if key := t.Field(i).Tag.Get("json"); key != "" {
				known = append(known, key)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		near := yamlfile.Nearest(key, known)
		if near != "" && !strings.EqualFold(near, key) { // as encoding/json finds keys
			list = append(list, fmt.Sprintf("the network configuration's key %.64q is unknown, did you mean %q?", key, near))
		}
	}
	return list
}

// decode decodes a part of the network configuration; an error names the key.
func decode(data []byte, prefix string, to any) error {
	err := json.Unmarshal(data, to)
	if err == nil {
		return nil
	}
	var mistyped *json.UnmarshalTypeError
	if !errors.As(err, &mistyped) {
		return fail(codeDecode, "decode network configuration: %v", err)
	}
	key := strings.Trim(prefix+"."+mistyped.Field, ".")
	if key == "" {
		return fail(codeConfig, "the network configuration is %s, want an object", article(mistyped.Value))
	}
	return fail(codeConfig, "the network configuration's %s is %s, want %s", key, article(mistyped.Value), wanted(mistyped.Type))
}

// article adds an article to the name that encoding/json has for a kind of value: "a string".
func article(kind string) string {
	switch {
	case kind == "bool":
		return "true or false"
	case strings.HasPrefix(kind, "number "):
		return fmt.Sprintf("the %s", kind)
	case strings.ContainsAny(kind[:1], "aeiou"):
		return "an " + kind
	}
	return "a " + kind
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Uint64:
		return "a whole number from 0 to 18446744073709551615"
	case reflect.Int:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "an array"
	}
	return "an object"
}
