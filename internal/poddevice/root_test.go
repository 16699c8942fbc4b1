package poddevice

import (
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The kernel says of each kind what it says to ip-link(8), and nothing is left in this namespace.
func TestRootTry(t *testing.T) {
	testenv.NetNS(t).Enter(t)
	for _, s := range Try() {
		out, err := exec.Command("ip", "link", "add", "type", string(s.Device)).CombinedOutput()
		if (err == nil) != (s.Err == nil) && !strings.Contains(string(out), "Unknown device type") {
			t.Errorf("%s: %v; ip link add: %v, %s", s.Device, s.Err, err, out)
		}
		if s.Device == pod.Veth && s.Err != nil {
			t.Error(s.Err)
		}
		t.Logf("%s: %v", s.Device, s.Err)
	}
	testenv.NetNS(t).Do(t, func() {
		Try()
		if all, err := net.Interfaces(); err != nil || len(all) != 1 {
			t.Errorf("%v, %v", all, err)
		}
	})
}

// Has says of each kind what an attempt says, and makes nothing.
func TestRootHas(t *testing.T) {
	testenv.NetNS(t).Do(t, func() {
		for _, s := range Try() {
			if err := Has(s.Device); (err == nil) != (s.Err == nil) || err != nil && err.Error() != s.Err.Error() {
				t.Errorf("%s: %v, want %v", s.Device, err, s.Err)
			}
		}
		if err := Has("tcpilot-no-such"); err == nil || !strings.Contains(err.Error(), "the kernel has no tcpilot-no-such devices") {
			t.Errorf("%v", err)
		}
		if all, err := net.Interfaces(); err != nil || len(all) != 1 {
			t.Errorf("%v, %v", all, err)
		}
	})
}

// What the kernel refuses for another reason is told as it is.
func TestRootRefused(t *testing.T) {
	testenv.Root(t)
	err := netns.InNew(func() error { return Make("tcpilot-no-such-device") })
	if err == nil || !strings.Contains(err.Error(), "the kernel has no tcpilot-no-such-device devices") {
		t.Errorf("%v", err)
	}
	if err := netns.InNew(func() error { return Make(pod.Device(strings.Repeat("x", 100))) }); err == nil || errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("%v", err)
	}
}
