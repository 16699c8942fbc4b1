package testenv

import (
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// Sysctl sets a sysctl (net.ipv4.tcp_congestion_control) in a namespace, nil for
// the caller's, until the test ends.
func Sysctl(t testing.TB, n *NS, name, value string) {
	t.Helper()
	Root(t)
	if name == "net.ipv4.tcp_congestion_control" {
		allow(t, value)
	}
	before := ReadSysctl(t, n, name)
	n.Do(t, func() {
		if err := sysctl.Write(name, value); err != nil {
			t.Fatalf("set %s to %q: %v", name, value, err)
		}
	})
	t.Cleanup(func() {
		n.Do(t, func() {
			if err := sysctl.Write(name, before); err != nil {
				t.Errorf("set %s back to %q: %v", name, before, err)
			}
		})
	})
}

// allow lets a congestion control be a namespace's default until the test ends. In other
// namespaces than the initial one, the kernel accepts only those in the machine's list of
// allowed congestion controls (tcp_set_default_congestion_control).
func allow(t testing.TB, cc string) {
	t.Helper()
	const list = "net.ipv4.tcp_allowed_congestion_control"
	if now := ReadSysctl(t, nil, list); !slices.Contains(strings.Fields(now), cc) {
		Sysctl(t, nil, list, now+" "+cc)
	}
}

// ReadSysctl reads a sysctl in a namespace, nil for the caller's.
func ReadSysctl(t testing.TB, n *NS, name string) string {
	t.Helper()
	var value string
	n.Do(t, func() {
		var err error
		if value, err = sysctl.Read(name); err != nil {
			t.Fatalf("read %s: %v", name, err)
		}
	})
	return value
}
