package podlink

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// onDevice lists the names of the programs at one hook of a device, and their links or filters, in order.
func onDevice(t *testing.T, ifindex int, at ebpf.AttachType) (names []string, by []uint64) {
	t.Helper()
	for _, p := range testenv.ClsPrograms(t, ifindex, at) {
		names, by = append(names, p.Name), append(by, p.By)
	}
	return names, by
}

// foreign attaches a program of somebody else's to a device.
func foreign(t *testing.T, ifindex int, name string) {
	t.Helper()
	testenv.AttachCls(t, ifindex, testenv.PassingProgram(t, name), ebpf.AttachTCXIngress)
}

// pins lists the pins of links.
func (r *rig) pins() (list []string) {
	r.t.Helper()
	entries, err := os.ReadDir(r.links.linkPins())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// An earlier process's programs are replaced in place, whether their pins are visible or hidden; so
// connections go on without the host's stack, and other programs stay.
func TestRootAdopt(t *testing.T) {
	for _, remounted := range []bool{false, true} {
		t.Run(map[bool]string{false: "pinned", true: "remounted"}[remounted], func(t *testing.T) {
			r := newRig(t)
			foreign(t, r.a.HostIndex, "before")
			r.open()
			r.set(r.wanted())
			foreign(t, r.a.HostIndex, "tcpilot_pod_out") // somebody else's, in spite of its name
			names, before := onDevice(t, r.a.HostIndex, ebpf.AttachTCXIngress)
			if !slices.Equal(names, []string{"before", "tcpilot_pod_out", "tcpilot_pod_out"}) {
				t.Fatalf("%q", names)
			}
			if err := r.links.Close(); err != nil {
				t.Fatal(err)
			}
			if remounted {
				testenv.MountBPFFS(t, filepath.Dir(r.dir))
			}
			old := r.links.programs.podOut.id
			r.open()
			r.set(r.wanted())
			if !r.links.adopted || r.links.programs.podOut.id == old {
				t.Errorf("adopted %v, program %d, before %d", r.links.adopted, r.links.programs.podOut.id, old)
			}
			if got, after := onDevice(t, r.a.HostIndex, ebpf.AttachTCXIngress); !slices.Equal(got, names) || !slices.Equal(after, before) {
				t.Errorf("%q %v, before %q %v", got, after, names, before)
			}
			if got := r.grown(func() { exchange(t, r.a.NS, r.c.NS, r.c.V4, 1000) }); got["pod-to-wire"] == 0 || got["wire-to-pod"] == 0 {
				t.Errorf("routed: %v", got)
			}
			if pins := r.pins(); testenv.HasTCX(t) && len(pins) != 5 { // two for each pod, one for the wire
				t.Errorf("pins %v", pins)
			}
			if err := r.links.Detach(); err != nil {
				t.Fatal(err)
			}
			if got, _ := onDevice(t, r.a.HostIndex, ebpf.AttachTCXIngress); !slices.Equal(got, []string{"before", "tcpilot_pod_out"}) {
				t.Errorf("after detaching: %q", got)
			}
			exchange(t, r.a.NS, r.c.NS, r.c.V4, 1000)
		})
	}
}

// Without a process, Remove finds programs whose pins are hidden.
func TestRootRemove(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	if err := r.links.Close(); err != nil {
		t.Fatal(err)
	}
	testenv.MountBPFFS(t, filepath.Dir(r.dir))
	foreign(t, r.a.HostIndex, "other")
	for i, want := range []bool{true, false} {
		if removed, err := Remove(r.dir); err != nil || removed != want {
			t.Errorf("%d: removed %v, %v", i, removed, err)
		}
	}
	if got, _ := onDevice(t, r.a.HostIndex, ebpf.AttachTCXIngress); !slices.Equal(got, []string{"other"}) {
		t.Errorf("left: %q", got)
	}
}

// A process that is killed after it wrote rows and before it attached programs leaves nothing that has an effect:
// packets take the stack, and the next process deletes the rows that it does not want.
func TestRootKilledBeforeAttaching(t *testing.T) {
	r := newRig(t)
	r.open()
	w := r.wanted()
	r.set(&Wanted{Pods: w.Pods[1:], Devices: w.Devices, Networks: w.Networks})
	a := uint32(r.a.HostIndex)
	if err := r.links.meters.add(a); err != nil {
		t.Fatal(err)
	}
	if err := r.links.devices.add(map[uint32]abiDevice{a: {Flags: uint32(abiDeviceFlagsDEVICE_ROUTED), Index: a, Egress: 1, Ingress: 1}}); err != nil {
		t.Fatal(err)
	}
	if got := r.grown(func() { exchange(t, r.b.NS, r.a.NS, r.a.V4, 1000) }); len(got) != 1 || got["destination"] == 0 {
		t.Errorf("before the next process: %v", got)
	}
	if err := r.links.Close(); err != nil {
		t.Fatal(err)
	}
	r.open()
	if _, left := r.links.devices.rows[a]; !left || !r.links.meters.keys[a] {
		t.Error("the next process does not know the rows")
	}
	r.set(&Wanted{Pods: w.Pods[1:], Devices: w.Devices, Networks: w.Networks})
	var d abiDevice
	var m abiPodMeters
	if d, m := r.links.objs.PodDevices.Lookup(a, &d), r.links.objs.PodMeters.Lookup(a, &m); d == nil || m == nil {
		t.Error("rows of a pod that is not wanted are left")
	}
	r.set(w)
	if got := r.grown(func() { exchange(t, r.b.NS, r.a.NS, r.a.V4, 1000) }); len(got) != 1 || got["pod-to-pod"] == 0 {
		t.Errorf("once it is wanted: %v", got)
	}
}

// Programs that an earlier process left at a device that is not wanted any more are detached, also if their pins
// are hidden.
func TestRootEarlier(t *testing.T) {
	r := newRig(t)
	r.open()
	w := r.wanted()
	r.set(w)
	if err := r.links.Close(); err != nil {
		t.Fatal(err)
	}
	testenv.MountBPFFS(t, filepath.Dir(r.dir))
	foreign(t, r.a.HostIndex, "other")
	r.open()
	w.Pods = w.Pods[1:]
	r.set(w)
	in, _ := onDevice(t, r.a.HostIndex, ebpf.AttachTCXIngress)
	out, _ := onDevice(t, r.a.HostIndex, ebpf.AttachTCXEgress)
	if !slices.Equal(in, []string{"other"}) || len(out) > 0 {
		t.Errorf("left: %q, %q", in, out)
	}
	if in, _ := onDevice(t, r.b.HostIndex, ebpf.AttachTCXIngress); !slices.Equal(in, []string{"tcpilot_pod_out"}) {
		t.Errorf("at the other pod's device: %q", in)
	}
}

// Programs are attached only to devices of present pods, and maps have only rows of these.
func TestRootFollow(t *testing.T) {
	r := newRig(t)
	r.open()
	w := r.wanted()
	r.set(w)
	w.Pods[0].Route = false
	r.set(w)
	got := r.grown(func() { exchange(t, r.a.NS, r.b.NS, r.b.V4, 1000); exchange(t, r.c.NS, r.a.NS, r.a.V6, 1000) })
	if len(got) != 1 || got["destination"] == 0 { // what the other pod sends to it
		t.Errorf("a pod that is not routed: %v", got)
	}
	w.Pods, w.Devices, w.Networks = w.Pods[1:], nil, nil
	r.set(w)
	names, _ := onDevice(t, r.a.HostIndex, ebpf.AttachTCXIngress)
	egress, _ := onDevice(t, r.a.HostIndex, ebpf.AttachTCXEgress)
	if len(names)+len(egress) > 0 {
		t.Errorf("at the device of a pod that is gone: %q, %q", names, egress)
	}
	if d := slices.Collect(maps.Keys(r.links.devices.rows)); len(d) != 1 || int(d[0]) != r.b.HostIndex || len(r.links.addresses.rows) != 2 || len(r.links.networks.rows) != 0 {
		t.Errorf("rows: devices %v, addresses %v, networks %v", d, r.links.addresses.rows, r.links.networks.rows)
	}
	for _, table := range []*ebpf.Map{r.links.objs.PodDevices, r.links.objs.PodAddresses, r.links.objs.PodNetworks} {
		rows := 0
		for it, k, v := table.Iterate(), make([]byte, table.KeySize()), make([]byte, table.ValueSize()); it.Next(&k, &v); {
			rows++
		}
		if want := map[*ebpf.Map]int{r.links.objs.PodDevices: 1, r.links.objs.PodAddresses: 2}[table]; rows != want {
			t.Errorf("%s has %d rows, want %d", table, rows, want)
		}
	}
	r.node.IP(t, "link del "+r.b.Host)
	missing, err := r.links.Set(w)
	if err != nil || len(missing.Pods) != 1 {
		t.Errorf("a device that is gone: %+v, %v", missing, err)
	}
	if pins := r.pins(); len(pins) != 0 {
		t.Errorf("pins %v", pins)
	}
}

// A device is not touched unless its other end is in the pod.
func TestRootOthersDevice(t *testing.T) {
	r := newRig(t)
	r.open()
	for want, change := range map[string]func(a, b *Pod){
		"its other end is not in the pod": func(a, _ *Pod) { a.Index = 1 }, // lo
		"another pod has its device":      func(a, b *Pod) { a.HostIndex = b.HostIndex },
		"neither veth nor netkit":         func(a, _ *Pod) { a.HostIndex = 1 }, // lo
		"no such device":                  func(a, _ *Pod) { a.HostIndex = 9999 },
		"is another network namespace":    func(a, b *Pod) { a.NetNS = b.NetNS },
		"does not say which device":       func(a, _ *Pod) { a.HostIndex = 0 },
	} {
		w := r.wanted()
		w.Pods[0], w.Pods[1] = w.Pods[1], w.Pods[0]
		a := w.Pods[1].Cookie
		change(&w.Pods[1], &w.Pods[0])
		missing, err := r.links.Set(w)
		if err != nil || len(missing.Pods) != 1 || missing.Pods[a] == nil || !strings.Contains(missing.Pods[a].Error(), want) {
			t.Errorf("want %q: %+v, %v", want, missing.Pods, err)
		}
	}
	for name, want := range map[string]string{"eth9": "there is no device eth9"} {
		missing, err := r.links.Set(&Wanted{Devices: []string{name}})
		if err != nil || missing.Devices[name] == nil || missing.Devices[name].Error() != want {
			t.Errorf("%s: %+v, %v", name, missing.Devices, err)
		}
	}
}

// If the record of a pod that was not removed has the address of a later pod, the address is the later one's, in any order of records. Both
// pods have their limits.
func TestRootAddressAgain(t *testing.T) {
	r := newRig(t)
	r.open()
	address := netip.AddrFrom16(r.b.V4.As16())
	at := func() int {
		var index uint32
		if err := r.links.objs.PodAddresses.Lookup(address.As16(), &index); err != nil {
			t.Fatal(err)
		}
		return int(index)
	}
	for _, swap := range []bool{false, true} {
		w := r.wanted()
		old, later := &w.Pods[0], &w.Pods[1]
		old.Addresses = append([]netip.Prefix{}, later.Addresses...)
		later.Boot, later.Uptime, old.Boot, old.Uptime = "boot", 2, "boot", 1
		old.Added = time.Now() // the clock was set back
		for _, p := range []*Pod{old, later} {
			p.Limits = pod.Bandwidth{Egress: 8e6}
		}
		of := map[*pod.Pod]string{old.Pod: "the old pod", later.Pod: "the later pod"}
		expect := func(when string, w *Wanted, index int, unrouted ...*pod.Pod) {
			t.Helper()
			missing, err := r.links.Set(w)
			if err != nil || len(missing.Pods) != 0 || len(missing.Routes) != len(unrouted) || at() != index {
				t.Errorf("%s: %v, missing %+v; the address is at %d, want %d", when, err, missing, at(), index)
			}
			for _, p := range unrouted {
				if why := missing.Routes[p.Cookie]; why == nil || !strings.Contains(why.Error(), "another pod has its address "+r.b.V4.String()) {
					t.Errorf("%s: %s: %v", when, of[p], why)
				}
			}
			for _, p := range w.Pods {
				if d := r.links.devices.rows[uint32(p.HostIndex)]; d.Egress != 1e6 || (d.Flags&uint32(abiDeviceFlagsDEVICE_ROUTED) != 0) != (p.HostIndex == index) {
					t.Errorf("%s: device of %s: %+v", when, of[p.Pod], d)
				}
			}
		}
		both := Wanted{Pods: []Pod{*old, *later}}
		if swap {
			both.Pods = []Pod{*later, *old}
		}
		expect("the old one alone", &Wanted{Pods: []Pod{*old}}, r.a.HostIndex)
		expect("both", &both, r.b.HostIndex, old.Pod)
		expect("the later one alone", &Wanted{Pods: []Pod{*later}}, r.b.HostIndex)
		expect("both again", &both, r.b.HostIndex, old.Pod)
		expect("the old one again", &Wanted{Pods: []Pod{*old}}, r.a.HostIndex)
	}
}

// Without the kernel's functions for connection tracking, no packet is routed.
func TestRootWithoutConntrack(t *testing.T) {
	r := newRig(t)
	r.open()
	if err := r.links.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.links.loadWith(r.links.mapPins(), false); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.links.devices, err = openTable[uint32, abiDevice](r.links.objs.PodDevices); err != nil {
		t.Fatal(err)
	}
	r.links.addresses.m, r.links.networks.m = r.links.objs.PodAddresses, r.links.objs.PodNetworks
	r.set(r.wanted())
	if got := r.grown(func() { exchange(t, r.a.NS, r.c.NS, r.c.V4, 1000) }); len(got) != 1 || got["nat"] == 0 {
		t.Errorf("%v", got)
	}
}

func TestRootTry(t *testing.T) {
	needRoot(t)
	if err := Try(); err != nil {
		t.Error(err)
	}
}
