package host

import (
	"os"
	"strings"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// Change is a sysctl that somebody changed.
type Change struct {
	Name   string // net.ipv4.tcp_congestion_control
	Before string
	After  string
}

// SysctlWatch notices changes of sysctls, in the network namespace of the
// process. Not safe for concurrent use. The kernel tells nobody about a change
// (there is no inotify on proc), so that Poll must be called.
type SysctlWatch struct {
	root  string
	names []string
	last  map[string]string
}

// NewSysctlWatch reads the sysctls below root, sysctl.Root. One that the kernel does not
// have is no error; should it appear later, its first value is no change.
func NewSysctlWatch(root string, names []string) *SysctlWatch {
	w := &SysctlWatch{root: root, names: names, last: make(map[string]string, len(names))}
	w.Poll()
	return w
}

// Names are the sysctls that are watched.
func (w *SysctlWatch) Names() []string { return w.names }

// Poll reads all and returns those that changed since the last call, in the
// order of the names. One that cannot be read keeps its last value.
func (w *SysctlWatch) Poll() []Change {
	var changes []Change
	for _, name := range w.names {
		value, err := readSysctl(w.root, name)
		if err != nil {
			continue
		}
		before, seen := w.last[name]
		w.last[name] = value
		if seen && value != before {
			changes = append(changes, Change{name, before, value})
		}
	}
	return changes
}

// ReadSysctls reads the sysctls in a network namespace (path or name, as netns.Path
// takes it). What the kernel does not have there is left out.
func ReadSysctls(ns string, names []string) (values map[string]string, err error) {
	err = netns.In(ns, func() error {
		values = readSysctls(names)
		return nil
	})
	return values, err
}

// NewNetNSSysctls reads what a network namespace has from its creation, by making one.
// Most of it is the kernel's default, some is inherited from the initial namespace.
func NewNetNSSysctls(names []string) (values map[string]string, err error) {
	err = netns.InNew(func() error {
		values = readSysctls(names)
		return nil
	})
	return values, err
}

func readSysctls(names []string) map[string]string {
	values := make(map[string]string, len(names))
	for _, name := range names {
		if v, err := readSysctl(sysctl.Root, name); err == nil {
			values[name] = v
		}
	}
	return values
}

// readSysctl reads a value with runs of blanks made single: net.ipv4.tcp_rmem
// separates its three numbers by tabs.
func readSysctl(root, name string) (string, error) {
	value, err := os.ReadFile(sysctl.PathBelow(root, name))
	if err != nil {
		return "", err
	}
	return strings.Join(strings.Fields(string(value)), " "), nil
}
