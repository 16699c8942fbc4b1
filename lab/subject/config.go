package subject

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// OwnKeys of tcpilot's configuration are the subject's to set, and no scenario's.
var OwnKeys = []string{"cgroup", "bpffs", "run_dir", "state_dir", "socket", "metrics"}

// checkConfig checks that a part of a configuration is valid YAML, and has no keys that the
// subject sets. `tcpilot check` checks the rest.
func checkConfig(text string) error {
	root, err := yamlfile.Parse([]byte(text), len(text))
	if err != nil {
		return readError(err)
	}
	entries, ok := yamlfile.Entries(root)
	if root != nil && !ok {
		return errors.New("read config: want key: value entries")
	}
	for _, e := range entries {
		if key, _ := yamlfile.Key(e.Key); slices.Contains(OwnKeys, key) {
			return fmt.Errorf("read config: %s may not be set by a scenario", key)
		}
	}
	return nil
}

func readError(err error) error {
	if m := (*yamlfile.Mistake)(nil); errors.As(err, &m) {
		return fmt.Errorf("read config: line %d, column %d: %w", m.At.Line, m.At.Col, m)
	}
	return fmt.Errorf("read config: %w", err)
}

// configLearns reports whether tcpilot learns by a part of a configuration: a rule
// of it does, or it has none and so tcpilot's own, which does.
func configLearns(text string) bool {
	root, err := yamlfile.Parse([]byte(text), len(text))
	if err != nil {
		return true
	}
	value, _ := yamlfile.Get(root, "rules")
	rules, _ := yamlfile.Items(value)
	for _, rule := range rules {
		if _, learns := yamlfile.Get(rule, "learn"); learns {
			return true
		}
	}
	return len(rules) == 0
}

// drawAlike adds the key of draws to a configuration, if it has none, because daemons whose
// connections share a queue should draw the same. Other lines do not change.
func drawAlike(text, key string) (string, error) {
	root, err := yamlfile.Parse([]byte(text), len(text))
	if err != nil {
		return "", readError(err)
	}
	entry := "draw_key: " + key
	section, ok := yamlfile.Get(root, "learning")
	if !ok {
		return withLine(text, "learning: {"+entry+"}"), nil
	}
	if yamlfile.IsNull(section) {
		return "", errors.New("read config: learning has no keys: remove it")
	}
	if _, has := yamlfile.Get(section, "draw_key"); has {
		return text, nil
	}
	at := yamlfile.Begin(section)
	lines := strings.Split(text, "\n")
	line := lines[at.Line-1]
	before, after := line[:at.Col-1], line[at.Col-1:]
	switch rest, flow := strings.CutPrefix(after, "{"); {
	case flow && strings.HasPrefix(strings.TrimSpace(rest), "}"):
		line = before + "{" + entry + rest
	case flow:
		line = before + "{" + entry + ", " + rest
	default:
		line = before + entry + "\n" + line
	}
	lines[at.Line-1] = line
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

// configure appends what the daemon needs to a configuration, so that existing lines keep
// their numbers.
func (f files) configure(text string) string {
	return withLine(text, fmt.Sprintf("cgroup: %s\nbpffs: %s\nrun_dir: %s\nstate_dir: %s\nmetrics: {listen: \"\"}",
		f.cgroup, f.bpffs, f.dir, f.state()))
}
