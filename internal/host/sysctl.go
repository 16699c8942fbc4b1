package host

import (
	"os"
	"strings"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// Change is a change of a sysctl.
type Change struct {
	Name   string // net.ipv4.tcp_congestion_control
	Before string
	After  string
}

// SysctlWatch detects changes of sysctls in the network namespace of the process. Poll
// must be called, because the kernel does not report changes (inotify does not work on
// proc). It is not safe for concurrent use.
type SysctlWatch struct {
	root  string
	names []string
	last  map[string]string
}

// NewSysctlWatch reads the sysctls below root, which is sysctl.Root except in tests. One that
// the kernel does not have is not an error; if it appears later, its first value is not a
// change.
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

// Expect notes a value that this process wrote, so that Poll does not report it as a change.
func (w *SysctlWatch) Expect(name, value string) {
	if _, seen := w.last[name]; seen {
		w.last[name] = value
	}
}

// ReadSysctls reads the sysctls in a network namespace (path or name, as for netns.Path).
// Sysctls that the kernel does not have there are left out.
func ReadSysctls(ns string, names []string) (values map[string]string, err error) {
	err = netns.In(ns, func() error {
		values = readSysctls(names)
		return nil
	})
	return values, err
}

// ReadSysctls is ReadSysctls for a namespace of the list.
func (ns NetNS) ReadSysctls(names []string) (values map[string]string, err error) {
	err = ns.In(func() error {
		values = readSysctls(names)
		return nil
	})
	return values, err
}

// NewNetNSSysctls reads the values that a new network namespace has, by creating one. Most
// are the kernel's defaults, some are inherited from the initial namespace.
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

// readSysctl reads a value and replaces each run of blanks by one space:
// net.ipv4.tcp_rmem separates its three numbers by tabs.
func readSysctl(root, name string) (string, error) {
	value, err := os.ReadFile(sysctl.PathBelow(root, name))
	if err != nil {
		return "", err
	}
	return strings.Join(strings.Fields(string(value)), " "), nil
}
