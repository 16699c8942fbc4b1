package subject

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// OwnKeys are the keys of tcpilot's configuration that the subject sets. Scenarios must not
// set them.
var OwnKeys = []string{"cgroup", "bpffs", "run_dir", "state_dir", "socket", "metrics"}

// readConfig reads a part of a configuration; nil is an empty one.
func readConfig(text string) (*yamlfile.Node, error) {
	d := yamlfile.Decoder{File: "config"}
	root := d.Read([]byte(text), len(text))
	if root != nil {
		d.Want(root, yamlfile.Mapping)
	}
	if err := d.Err(); err != nil {
		return nil, fmt.Errorf("read %w", err)
	}
	return root, nil
}

// checkConfig checks that a part of a configuration is valid YAML, and has no keys that the
// subject sets. `tcpilot check` checks the rest.
func checkConfig(text string) error {
	root, err := readConfig(text)
	if err != nil {
		return err
	}
	for _, key := range OwnKeys {
		if root.Get(key) != nil {
			return fmt.Errorf("read config: %s may not be set by a scenario", key)
		}
	}
	if root.Get("pods").Get("dir") != nil {
		return errors.New("read config: pods.dir may not be set by a scenario")
	}
	return nil
}

// configLearns reports whether tcpilot learns with this part of a configuration: a rule
// learns, or there are no rules, so that tcpilot's default rules apply, which learn.
func configLearns(text string) bool {
	root, err := readConfig(text)
	rules := root.Get("rules")
	return err != nil || rules == nil || len(rules.Items) == 0 ||
		slices.ContainsFunc(rules.Items, func(rule *yamlfile.Node) bool { return rule.Get("learn") != nil })
}

// configRoutes reports whether tcpilot routes packets of pods with this part of a configuration.
func configRoutes(text string) bool {
	root, _ := readConfig(text)
	way := root.Get("pods").Get("host_routing")
	return way != nil && way.Text == "on"
}

// drawAlike adds the key of draws (learning.draw_key) to a configuration that has none,
// because daemons whose connections share a queue should draw the same arms. Other lines do
// not change.
func drawAlike(text, key string) (string, error) {
	return withEntry(text, "learning", "draw_key", key)
}

// withEntry adds a key to a section of a configuration that does not have it. Other lines do not
// change.
func withEntry(text, name, key, value string) (string, error) {
	root, err := readConfig(text)
	if err != nil {
		return "", err
	}
	entry := key + ": " + value
	section := root.Get(name)
	switch {
	case section == nil:
		return withLine(text, name+": {"+entry+"}"), nil
	case section.Kind == yamlfile.Null:
		return "", fmt.Errorf("read config: %s has no keys: remove it", name)
	case section.Get(key) != nil:
		return text, nil
	}
	lines := strings.Split(text, "\n")
	line := lines[section.Line-1]
	before, after := line[:section.Col-1], line[section.Col-1:]
	switch rest, flow := strings.CutPrefix(after, "{"); {
	case flow && strings.HasPrefix(strings.TrimSpace(rest), "}"):
		line = before + "{" + entry + rest
	case flow:
		line = before + "{" + entry + ", " + rest
	default:
		line = before + entry + "\n" + line
	}
	lines[section.Line-1] = line
	return strings.Join(lines, "\n"), nil
}

// withLine adds a line at the end.
func withLine(text, line string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + line + "\n"
}

// files are the paths of a tcpilot daemon's own files.
type files struct{ cgroup, bpffs, dir string }

func (f files) config() string { return filepath.Join(f.dir, "tcpilot.yaml") }
func (f files) socket() string { return filepath.Join(f.dir, "tcpilot.sock") }
func (f files) state() string  { return filepath.Join(f.dir, "state") }
func (f files) pods() string   { return filepath.Join(f.dir, "pods") }

// configure appends what the daemon needs to a configuration, so that existing lines keep
// their numbers.
func (f files) configure(text string) string {
	return withLine(text, fmt.Sprintf("cgroup: %s\nbpffs: %s\nrun_dir: %s\nstate_dir: %s\nmetrics: {listen: \"\"}",
		f.cgroup, f.bpffs, f.dir, f.state()))
}
