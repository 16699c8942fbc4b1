package podlink

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// addVRF puts devices of the node into a VRF, which has the table 100. It reports whether the kernel has VRF, which is tried under other
// kernels (test/vm). A device that joins loses its routes and its IPv6 addresses.
func (r *rig) addVRF(devices ...string) bool {
	r.t.Helper()
	has := exec.Command("modprobe", "vrf").Run() == nil // it may be built in
	if out, err := exec.Command("ip", "link", "add", "blue", "type", "vrf", "table", "100").CombinedOutput(); err != nil {
		if has {
			r.t.Fatalf("%v: %s", err, out)
		}
		r.t.Logf("this kernel has no VRF: %s", out)
		return false
	}
	r.node.IP(r.t, "link set blue up")
	for _, d := range devices {
		r.node.IP(r.t, fmt.Sprintf("link set %s master blue", d))
	}
	return true
}

// Packets of devices in a VRF take the routes of its table, and those of other devices the routes of the main table, as when the host's
// stack forwards them: also if the other table has another route to the same destination, and if a route leads out of the VRF.
func TestRootVRF(t *testing.T) {
	r := newRig(t)
	if !r.addVRF(r.a.Host, "wire") {
		return
	}
	testenv.Sysctl(t, r.node.NS, "net.ipv4.icmp_ratelimit", "0")
	testenv.Sysctl(t, r.node.NS, "net.ipv6.icmp.ratelimit", "0")
	r.node.IP(t, fmt.Sprintf(`route add %s dev %s table 100
		route add %s via 10.2.0.2 dev wire table 100
		route add unreachable 0.0.0.0/0 table 100
		route add prohibit %[3]s`, r.a.V4, r.a.Host, r.far.V4))
	r.node.IP(t, fmt.Sprintf(`addr replace fd02::1/64 dev wire nodad
		route add %s dev %s table 100
		route add %s via fd02::2 dev wire table 100
		route add unreachable ::/0 table 100
		route add prohibit %[3]s`, r.a.V6, r.a.Host, r.far.V6))
	r.open()
	// Without the programs, the kernel says what is right.
	kernels, ours := &Wanted{}, r.wanted()
	set := func(w *Wanted) { r.node.Do(t, func() { r.set(w) }) }
	// Where the kernel refuses to forward, it gets the packet, and answers in the same way.
	refused := func(t *testing.T, what string, from *testenv.Pod, address netip.Addr, counter string) {
		t.Helper()
		var kernelSays, got unix.Errno
		var counts map[string]uint64
		// The kernel limits the rate of errors about routes (net.ipv4.route.error_cost), not by namespace.
		for range 20 {
			if kernelSays == 0 {
				set(kernels)
				errors.As(answer(t, from.NS, address, 0, 0, 500*time.Millisecond), &kernelSays)
				continue
			}
			set(ours)
			counts = r.grown(func() { errors.As(answer(t, from.NS, address, 0, 0, 500*time.Millisecond), &got) })
			if got != 0 {
				break
			}
		}
		if kernelSays == 0 || got != kernelSays || counts[counter] != 1 || len(counts) != 1 {
			t.Errorf("%s: %v, without programs %v; %v, want 1 of %s", what, got, kernelSays, counts, counter)
		}
		t.Logf("%s: %v", what, got)
	}
	arrives := func(t *testing.T, what string, from, to *testenv.Pod, address netip.Addr, counters ...string) {
		t.Helper()
		set(kernels)
		exchange(t, from.NS, to.NS, address, 1000)
		set(ours)
		if counts := r.grown(func() { exchange(t, from.NS, to.NS, address, 1<<18) }); !slices.Equal(keys(counts), counters) {
			t.Errorf("%s: %v, want %v", what, counts, counters)
		}
	}
	forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
		arrives(t, "in the VRF", r.a, r.c, address(r.c), "pod-to-wire", "wire-to-pod")
		arrives(t, "from the wire, in the VRF", r.c, r.a, address(r.a), "pod-to-wire", "wire-to-pod")
		refused(t, "out of the VRF", r.a, address(r.b), "unreachable")
		refused(t, "from the wire, out of the VRF", r.c, address(r.b), "unreachable")
		refused(t, "of another device", r.b, address(r.c), "prohibit")
		r.node.IP(t, fmt.Sprintf("route add %s dev %s table 100\nroute add %s dev %s", address(r.b), r.b.Host, address(r.a), r.a.Host))
		arrives(t, "by routes between the tables", r.a, r.b, address(r.b), "pod-to-pod")
		arrives(t, "by routes between the tables, into the VRF", r.b, r.a, address(r.a), "pod-to-pod")
	})
}
