package subject

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

func TestMain(m *testing.M) {
	load.RunIfAgent()
	runIfStandIn()
	testenv.Main(m)
}

// build builds tcpilot once, beside the test's own binary.
var build = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("TCPILOT_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(filepath.Dir(self), "tcpilot")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/tcpilot/tcpilot/cmd/tcpilot").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build tcpilot: %w\n%s", err, out)
	}
	return bin, nil
})

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newWorld has two senders, which are tuned, and a receiver. All begin with
// reno.
func newWorld(t *testing.T) World {
	t.Helper()
	testenv.Root(t)
	n, err := topology.New()
	must(t, err)
	t.Cleanup(func() { must(t, n.Close()) })
	l, err := topology.Build(n, topology.Incast(2))
	must(t, err)
	w := World{Net: n, Layout: l, Tuned: l.Senders, Cgroups: map[string]*topology.Cgroup{}, CC: "reno"}
	for _, h := range l.Senders {
		w.Cgroups[h.Name], err = n.Cgroup(h.Name)
		must(t, err)
	}
	return w
}

// newSubject makes a subject that is closed with the test.
func newSubject(t *testing.T, s Spec, w World) Subject {
	t.Helper()
	if s.Name == "" {
		s.Name = string(s.Kind)
	}
	sub, err := New(s, w)
	must(t, err)
	t.Cleanup(func() {
		must(t, sub.Close())
		if t.Failed() {
			t.Log(sub.Log())
		}
	})
	return sub
}

// look is what a subject may change: congestion control, other sysctls and
// routes of the hosts, processes in them, and mounts of the run.
func look(t *testing.T, w World) (lines []string) {
	t.Helper()
	for _, name := range []string{"sender1", "sender2", "receiver1", "switch"} {
		h := w.Layout.Hosts[name]
		for _, key := range []string{kernelcc.DefaultKey, "net.ipv4.tcp_wmem"} {
			value, err := h.Sysctl(key)
			must(t, err)
			lines = append(lines, name+": "+value)
		}
		for _, family := range []string{"-4", "-6"} {
			routes, err := h.Run("ip", family, "route")
			must(t, err)
			for route := range strings.Lines(routes) {
				// The kernel notices a little later that a new link is up.
				route = strings.ReplaceAll(route, " linkdown", "")
				lines = append(lines, name+": "+strings.TrimSpace(route))
			}
		}
		pids, err := exec.Command("ip", "netns", "pids", h.Namespace).Output()
		must(t, err)
		for _, pid := range strings.Fields(string(pids)) {
			if pid != strconv.Itoa(os.Getpid()) { // a thread of it may be there
				command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				lines = append(lines, fmt.Sprintf("%s: process %q", name, command))
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/run/tcpilot-"+w.Net.ID()) {
			lines = append(lines, line)
		}
	}
	return lines
}

// unchanged fails the test if something differs from before.
func unchanged(t *testing.T, w World, before []string) {
	t.Helper()
	after := look(t, w)
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("is gone: %s", line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("is new: %s", line)
		}
	}
}
