package host

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/tcpilot/tcpilot/internal/thread"
)

// ProcSys is where the kernel shows its sysctls.
const ProcSys = "/proc/sys"

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

// NewSysctlWatch reads the sysctls below root, ProcSys. One that the kernel does not
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

// ReadSysctls reads the sysctls in a network namespace (path or name, as NetNSPath
// takes it). What the kernel does not have there is left out.
func ReadSysctls(netns string, names []string) (values map[string]string, err error) {
	err = InNetNS(netns, func() error {
		values = readSysctls(names)
		return nil
	})
	return values, err
}

// NewNetNSSysctls reads what a network namespace has from its creation, by making one.
// Most of it is the kernel's default, some is inherited from the initial namespace.
func NewNetNSSysctls(names []string) (values map[string]string, err error) {
	err = thread.InNewNetNS(func() error {
		values = readSysctls(names)
		return nil
	})
	return values, err
}

func readSysctls(names []string) map[string]string {
	values := make(map[string]string, len(names))
	for _, name := range names {
		if v, err := readSysctl(ProcSys, name); err == nil {
			values[name] = v
		}
	}
	return values
}

// readSysctl reads a value with runs of blanks made single: net.ipv4.tcp_rmem
// separates its three numbers by tabs.
func readSysctl(root, name string) (string, error) {
	value, err := os.ReadFile(sysctlPath(root, name))
	if err != nil {
		return "", err
	}
	return strings.Join(strings.Fields(string(value)), " "), nil
}

// sysctlPath maps a name to its file as sysctl(8) does: dots separate, and a
// slash stands for a dot within one part (net.ipv4.conf.eth0/1.forwarding).
func sysctlPath(root, name string) string {
	swap := strings.NewReplacer(".", "/", "/", ".")
	return filepath.Join(root, swap.Replace(name))
}
