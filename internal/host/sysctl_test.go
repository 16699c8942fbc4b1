package host

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// fakeSysctls writes a tree like /proc/sys.
func fakeSysctls(t *testing.T, values map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, value := range values {
		path := sysctl.PathBelow(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	ccName   = "net.ipv4.tcp_congestion_control"
	rmemName = "net.ipv4.tcp_rmem"
)

func TestSysctlWatch(t *testing.T) {
	root := fakeSysctls(t, map[string]string{ccName: "cubic\n", rmemName: "4096\t131072\t6291456\n"})
	w := NewSysctlWatch(root, []string{ccName, rmemName, "net.core.absent"})
	if got := w.Poll(); got != nil {
		t.Fatalf("nothing changed: %v", got)
	}
	if got, ok := w.last[rmemName]; !ok || got != "4096 131072 6291456" {
		t.Errorf("value is %q, %v", got, ok)
	}
	if _, ok := w.last["net.core.absent"]; ok {
		t.Error("an absent sysctl has a value")
	}

	set := func(name, value string) {
		t.Helper()
		path := sysctl.PathBelow(root, name)
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set(ccName, "bbr\n")
	set(rmemName, "4096 131072 6291456\n") // the same value in another form
	set("net.core.absent", "1\n")          // a module was loaded
	want := []Change{{ccName, "cubic", "bbr"}}
	if got := w.Poll(); !slices.Equal(got, want) {
		t.Errorf("changes %v, want %v", got, want)
	}
	if got := w.Poll(); got != nil {
		t.Errorf("reported twice: %v", got)
	}
	if got := w.last[ccName]; got != "bbr" {
		t.Errorf("value is %q", got)
	}

	set("net.core.absent", "2\n")
	os.Remove(sysctl.PathBelow(root, ccName))
	want = []Change{{"net.core.absent", "1", "2"}}
	if got := w.Poll(); !slices.Equal(got, want) {
		t.Errorf("changes %v, want %v", got, want)
	}
}

func TestRootSysctlWatch(t *testing.T) {
	const name = "net.ipv4.tcp_syn_retries"
	n := testenv.NetNS(t)
	n.Enter(t)
	testenv.Sysctl(t, n, name, "5")
	w := NewSysctlWatch(sysctl.Root, []string{name})
	testenv.Sysctl(t, n, name, "4")
	want := []Change{{name, "5", "4"}}
	if got := w.Poll(); !slices.Equal(got, want) {
		t.Errorf("changes %v, want %v", got, want)
	}
}

// BenchmarkSysctlPoll reads the sysctls that the daemon watches.
func BenchmarkSysctlPoll(b *testing.B) {
	w := NewSysctlWatch(sysctl.Root, []string{
		ccName, rmemName, "net.ipv4.tcp_wmem", "net.ipv4.tcp_ecn", "net.ipv4.tcp_notsent_lowat",
		"net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes",
		"net.ipv4.tcp_syn_retries", "net.core.txrehash",
	})
	b.ReportAllocs()
	for b.Loop() {
		w.Poll()
	}
}

// BenchmarkRootReadSysctls visits another network namespace, and reads the sysctls of three
// fields there.
func BenchmarkRootReadSysctls(b *testing.B) {
	testenv.Root(b)
	ns := testenv.NetNS(b)
	names := []string{ccName, "net.ipv4.tcp_notsent_lowat", "net.ipv4.tcp_rto_min_us"}
	for b.Loop() {
		if values, err := ReadSysctls(ns.Path(), names); err != nil || values[ccName] == "" {
			b.Fatal(values, err)
		}
	}
}
