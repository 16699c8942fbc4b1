package podlink

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/poddevice"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// forEachKind runs f as a subtest for each kind of device that the kernel has; netkit is tried under other kernels
// (test/vm). hook is where the program for what a pod sends belongs.
func forEachKind(t *testing.T, f func(t *testing.T, r *rig, hook ebpf.AttachType)) {
	t.Helper()
	testenv.Root(t)
	for _, kind := range poddevice.Try() {
		if kind.Err != nil && kind.Device == pod.Netkit {
			t.Log(kind.Err)
			continue
		}
		t.Run(string(kind.Device), func(t *testing.T) {
			r, hook := newRig(t), ebpf.AttachTCXIngress
			if kind.Device == pod.Netkit {
				r.a, r.b = r.node.AddNetkitPod(t), r.node.AddNetkitPod(t)
				if netkitRedirects() {
					hook = ebpf.AttachNetkitPeer
				}
			}
			r.open()
			f(t, r, hook)
		})
	}
}

func TestRootKindsOfDevices(t *testing.T) {
	forEachKind(t, func(t *testing.T, r *rig, _ ebpf.AttachType) {
		r.set(r.wanted())
		forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
			if got := r.grown(func() { exchange(t, r.a.NS, r.b.NS, address(r.b), 1<<18) }); got["pod-to-pod"] == 0 || len(got) != 1 {
				t.Errorf("on the node: %v", got)
			}
			got := r.grown(func() { exchange(t, r.a.NS, r.c.NS, address(r.c), 1<<18) })
			if got["pod-to-wire"] == 0 || got["wire-to-pod"] == 0 || len(got) != 2 {
				t.Errorf("to the other node: %v", got)
			}
			if got := arrivingTTL(t, r.c.NS, r.a.NS, address(r.a)); got != 62 {
				t.Errorf("TTL %d", got)
			}
			if got := arrivingTTL(t, r.a.NS, r.b.NS, address(r.b)); got != 63 {
				t.Errorf("TTL %d on the node", got)
			}
		})
	})
}

// The next process takes the programs over, and nothing of them remains when they are removed.
func TestRootKindsAdopt(t *testing.T) {
	forEachKind(t, func(t *testing.T, r *rig, hook ebpf.AttachType) {
		r.set(r.wanted())
		names, before := onDevice(t, r.a.HostIndex, hook)
		if hook != ebpf.AttachTCXIngress {
			if also, _ := onDevice(t, r.a.HostIndex, ebpf.AttachTCXIngress); len(names) != 1 || len(also) != 0 {
				t.Fatalf("%q, and at tcx ingress %q", names, also)
			}
		}
		if err := r.links.Close(); err != nil {
			t.Fatal(err)
		}
		r.open()
		r.set(r.wanted())
		if got, after := onDevice(t, r.a.HostIndex, hook); !r.links.adopted || !slices.Equal(got, names) || !slices.Equal(after, before) {
			t.Errorf("adopted %v, %q %v, before %q %v", r.links.adopted, got, after, names, before)
		}
		if got := r.grown(func() { exchange(t, r.a.NS, r.c.NS, r.c.V4, 1000) }); got["pod-to-wire"] == 0 || got["wire-to-pod"] == 0 || len(got) != 2 {
			t.Errorf("routed: %v", got)
		}
		if err := r.links.Close(); err != nil {
			t.Fatal(err)
		}
		if removed, err := Remove(r.dir); err != nil || !removed {
			t.Errorf("removed %v, %v", removed, err)
		}
		if got, _ := onDevice(t, r.a.HostIndex, hook); len(got) != 0 {
			t.Errorf("left: %q", got)
		}
		exchange(t, r.a.NS, r.c.NS, r.c.V4, 1000)
	})
}

// Each limit counts each packet once.
func TestRootKindsLimits(t *testing.T) {
	const rate = 20e6 / 8 // bytes per second
	forEachKind(t, func(t *testing.T, r *rig, _ ebpf.AttachType) {
		egress, ingress := pod.Bandwidth{Egress: 20e6}, pod.Bandwidth{Ingress: 20e6}
		for name, w := range map[string]*Wanted{
			"egress": r.limitTo(egress, pod.Bandwidth{}, false), "egress, routed": r.limitTo(egress, pod.Bandwidth{}, true),
			"ingress": r.limitTo(pod.Bandwidth{}, ingress, false), "ingress, routed": r.limitTo(pod.Bandwidth{}, ingress, true),
		} {
			r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{}, false))
			r.set(w) // new meters
			f := flood(t, r.a, r.b, r.b.V4, nil, 500*time.Millisecond)
			m := r.links.Meters(r.a.HostIndex).Egress
			if w.Pods[1].Limits.Ingress != 0 {
				m = r.links.Meters(r.b.HostIndex).Ingress
			}
			least, most := 0.85*f.least(rate), rate*(f.took+60*time.Millisecond).Seconds()+3000
			if f.arrived < least || f.arrived > most || m.Dropped == 0 && f.exceeds(rate) || float64(m.Passed) > most+60e-3*rate {
				t.Errorf("%s: %+v, want %.0f to %.0f; %+v", name, f, least, most, m)
			}
		}
	})
}

// Pods with devices of different kinds reach each other.
func TestRootKindsMixed(t *testing.T) {
	forEachKind(t, func(t *testing.T, r *rig, _ ebpf.AttachType) {
		r.b = r.node.AddPod(t)
		r.set(r.wanted())
		forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
			for _, ends := range [][2]*testenv.Pod{{r.a, r.b}, {r.b, r.a}} {
				got := r.grown(func() { exchange(t, ends[0].NS, ends[1].NS, address(ends[1]), 1<<18) })
				if got["pod-to-pod"] == 0 || len(got) != 1 {
					t.Errorf("to %s: %v", ends[1].Host, got)
				}
			}
		})
	})
}

// The program of netkit pairs gives way to that of tcx where another plugin made the pair, or somebody else has a program; each
// time there is one of the two.
func TestRootKindsGiveWay(t *testing.T) {
	forEachKind(t, func(t *testing.T, r *rig, hook ebpf.AttachType) {
		check := func(what string, want ebpf.AttachType, others ...string) {
			t.Helper()
			if got := r.grown(func() { exchange(t, r.a.NS, r.c.NS, r.c.V4, 1000) }); got["pod-to-wire"] == 0 || got["wire-to-pod"] == 0 || len(got) != 2 {
				t.Errorf("%s: %v", what, got)
			}
			for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, hook} {
				expected := slices.Clone(others)
				if at == want {
					expected = append(expected, map[ebpf.AttachType]string{ebpf.AttachTCXIngress: "tcpilot_pod_out", ebpf.AttachNetkitPeer: "tcpilot_nk_out"}[at])
				}
				if at != ebpf.AttachTCXIngress {
					expected = expected[len(others):]
				}
				if got, _ := onDevice(t, r.a.HostIndex, at); !slices.Equal(got, expected) {
					t.Errorf("%s: %q at hook %v, want %q", what, got, at, expected)
				}
			}
		}
		w := r.wanted()
		w.Pods[0].Made = false
		r.set(w)
		check("of another plugin", ebpf.AttachTCXIngress)
		if err := r.links.Close(); err != nil {
			t.Fatal(err)
		}
		r.open() // as after an upgrade
		r.set(r.wanted())
		check("made here", hook)
		foreign(t, r.a.HostIndex, "other")
		r.set(r.wanted())
		if hook == ebpf.AttachNetkitPeer {
			check("beside another one", ebpf.AttachTCXIngress, "other")
		}
	})
}
