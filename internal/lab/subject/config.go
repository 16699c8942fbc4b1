package subject

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// ownKeys of tcpilot's configuration are the subject's to set.
var ownKeys = []string{"cgroup", "bpffs", "run_dir", "state_dir", "socket", "metrics"}

// parseConfig reads the keys of a part of a configuration. Whether they are
// right, `tcpilot check` says.
func parseConfig(text string) (keys []string, err error) {
	var top yaml.MapSlice
	if err := yaml.Unmarshal([]byte(text), &top); err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	for _, item := range top {
		key := fmt.Sprint(item.Key)
		if slices.Contains(ownKeys, key) {
			return nil, fmt.Errorf("read config: %s is not for a scenario to set", key)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// files are where a daemon of tcpilot keeps what is its own.
type files struct{ cgroup, bpffs, dir string }

func (f files) config() string { return filepath.Join(f.dir, "tcpilot.yaml") }
func (f files) socket() string { return filepath.Join(f.dir, "tcpilot.sock") }
func (f files) state() string  { return filepath.Join(f.dir, "state") }

// configure adds what the daemon needs behind a configuration: so lines have the
// numbers that their author knows.
func (f files) configure(text string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + fmt.Sprintf("cgroup: %s\nbpffs: %s\nrun_dir: %s\nstate_dir: %s\nmetrics: {listen: \"\"}\n",
		f.cgroup, f.bpffs, f.dir, f.state())
}
