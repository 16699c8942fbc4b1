package subject

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// OwnKeys of tcpilot's configuration are the subject's to set, and no scenario's.
var OwnKeys = []string{"cgroup", "bpffs", "run_dir", "state_dir", "socket", "metrics"}

// checkConfig checks that a part of a configuration is valid YAML, and has no keys that the
// subject sets. `tcpilot check` checks the rest.
func checkConfig(text string) error {
	var top yaml.MapSlice
	if err := yaml.Unmarshal([]byte(text), &top); err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	for _, item := range top {
		if key := fmt.Sprint(item.Key); slices.Contains(OwnKeys, key) {
			return fmt.Errorf("read config: %s may not be set by a scenario", key)
		}
	}
	return nil
}

// configLearns reports whether tcpilot learns by a part of a configuration: a rule
// of it does, or it has none and so tcpilot's own, which does.
func configLearns(text string) bool {
	var top struct {
		Rules []map[string]any `yaml:"rules"`
	}
	if err := yaml.Unmarshal([]byte(text), &top); err != nil || len(top.Rules) == 0 {
		return true
	}
	return slices.ContainsFunc(top.Rules, func(rule map[string]any) bool {
		_, learns := rule["learn"]
		return learns
	})
}

// drawAlike adds the key of draws to a configuration, if it has none, because daemons whose
// connections share a queue should draw the same. Existing lines keep their numbers only if
// there is no learning section.
func drawAlike(text, key string) (string, error) {
	var top yaml.MapSlice
	if err := yaml.Unmarshal([]byte(text), &top); err != nil {
		return "", fmt.Errorf("read config: %w", err)
	}
	i := slices.IndexFunc(top, func(item yaml.MapItem) bool { return item.Key == "learning" })
	if i < 0 {
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		return text + fmt.Sprintf("learning: {draw_key: %s}\n", key), nil
	}
	var section struct{ Learning yaml.MapSlice }
	if err := yaml.UnmarshalWithOptions([]byte(text), &section, yaml.UseOrderedMap()); err != nil {
		return "", fmt.Errorf("read learning section: %w", err)
	}
	if slices.ContainsFunc(section.Learning, func(item yaml.MapItem) bool { return item.Key == "draw_key" }) {
		return text, nil
	}
	top[i].Value = append(section.Learning, yaml.MapItem{Key: "draw_key", Value: key})
	out, err := yaml.Marshal(top)
	if err != nil {
		return "", fmt.Errorf("write learning section: %w", err)
	}
	return string(out), nil
}

// files are the paths of a tcpilot daemon's own files.
type files struct{ cgroup, bpffs, dir string }

func (f files) config() string { return filepath.Join(f.dir, "tcpilot.yaml") }
func (f files) socket() string { return filepath.Join(f.dir, "tcpilot.sock") }
func (f files) state() string  { return filepath.Join(f.dir, "state") }

// configure appends what the daemon needs to a configuration, so that existing lines keep
// their numbers.
func (f files) configure(text string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + fmt.Sprintf("cgroup: %s\nbpffs: %s\nrun_dir: %s\nstate_dir: %s\nmetrics: {listen: \"\"}\n",
		f.cgroup, f.bpffs, f.dir, f.state())
}
