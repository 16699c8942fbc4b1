package podlink

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// openFilters is open with programs that are attached as filters, on every kernel.
func (r *rig) openFilters() {
	r.t.Helper()
	r.open()
	r.links.way = filters{}
}

// check compares the filters with programs at both hooks of a device, and its qdisc.
func (r *rig) check(t *testing.T, what string, ifindex int, qdisc string, in, out []string) {
	t.Helper()
	for at, want := range map[ebpf.AttachType][]string{ebpf.AttachTCXIngress: in, ebpf.AttachTCXEgress: out} {
		var got []string
		for _, f := range testenv.ClsFilters(t, ifindex, at) {
			got = append(got, f.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: filters %q at %v of device %d, want %q", what, got, at, ifindex, want)
		}
	}
	if got, err := rtnetlink.ClsactOf(ifindex); err != nil || got != qdisc {
		t.Errorf("%s: device %d has the qdisc %q, %v, want %q", what, ifindex, got, err, qdisc)
	}
}

func (r *rig) wire() int {
	r.t.Helper()
	d, err := outer("wire")
	if err != nil {
		r.t.Fatal(err)
	}
	return d.Index
}

// counting is a program of somebody else's that counts packets and passes them on.
func counting(t *testing.T) (prog *ebpf.Program, count func() uint64) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "other", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("exit"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog, func() (n uint64) {
		t.Helper()
		if err := m.Lookup(uint32(0), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// Packets are routed by filters as by tcx links, in both families and all directions, and pass the filters of others before.
func TestRootFiltersRoute(t *testing.T) {
	r := newRig(t)
	before, countBefore := counting(t)
	testenv.AttachFilter(t, r.a.HostIndex, before, ebpf.AttachTCXIngress, 1, 1)
	r.openFilters()
	r.set(r.wanted())
	same, countSame := counting(t) // of the same priority
	testenv.AttachFilter(t, r.a.HostIndex, same, ebpf.AttachTCXIngress, priorities[0], 1)
	forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
		others := countBefore() + countSame()
		if got := r.grown(func() { exchange(t, r.a.NS, r.b.NS, address(r.b), 1<<18) }); !slices.Equal(keys(got), []string{"pod-to-pod"}) {
			t.Errorf("on the node: %v", got)
		}
		got := r.grown(func() { exchange(t, r.a.NS, r.c.NS, address(r.c), 1<<18) })
		if !slices.Equal(keys(got), []string{"pod-to-wire", "wire-to-pod"}) {
			t.Errorf("to the other node: %v", got)
		}
		if got := r.grown(func() { exchange(t, r.c.NS, r.a.NS, address(r.a), 1<<18) }); !slices.Equal(keys(got), []string{"pod-to-wire", "wire-to-pod"}) {
			t.Errorf("from the other node: %v", got)
		}
		if n := countBefore() + countSame() - others; n < 20 || countBefore() > 2*countSame() {
			t.Errorf("filters of others: %d packets before, %d at the same priority", countBefore(), countSame())
		}
	})
	if err := r.links.Detach(); err != nil {
		t.Fatal(err)
	}
	r.check(t, "detached", r.a.HostIndex, "clsact", []string{"other", "other"}, nil)
	r.check(t, "detached", r.b.HostIndex, "", nil, nil)
	r.check(t, "detached", r.wire(), "", nil, nil)
	exchange(t, r.a.NS, r.c.NS, r.c.V4, 1000)
}

// While filters are replaced, each packet passes one of the two programs: the others would take the stack, without being counted.
func TestRootFiltersReplace(t *testing.T) {
	r := newRig(t)
	r.openFilters()
	r.set(r.wanted())
	_, out := datagrams(t, r.a, r.c, r.c.V4)
	if _, err := out.Write([]byte("x")); err != nil { // the neighbour is known then
		t.Fatal(err)
	}
	replaced := 0
	var sent uint64
	got := r.grown(func() {
		var stop atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			for !stop.Load() {
				if _, err := out.Write([]byte("x")); err != nil {
					t.Error(err)
					return
				}
				sent++
				time.Sleep(time.Microsecond) // a few tens, which leaves time for the rest
			}
		}()
		for range 3 { // processes
			if err := r.links.Close(); err != nil {
				t.Fatal(err)
			}
			r.openFilters()
			r.set(r.wanted())
			if !r.links.adopted {
				t.Error("the next process has not replaced the filters")
			}
			for begun := time.Now(); time.Since(begun) < 300*time.Millisecond; replaced++ {
				f, err := findFilter(&r.links.programs.podOut, r.a.HostIndex)
				if err == nil {
					err = f.replace(&r.links.programs.podOut)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		stop.Store(true)
		<-done
	})
	t.Logf("%d packets, replaced %d times", sent, replaced)
	if sent < 1000 || replaced < 30 || got["pod-to-wire"] != sent {
		t.Errorf("%d packets, %v, while filters were replaced %d times", sent, got, replaced)
	}
	r.check(t, "at the end", r.a.HostIndex, "clsact", []string{"tcpilot_pod_out"}, []string{"tcpilot_pod_in"})
}

// The qdisc is removed if tcpilot added it and no filter of others needs it, whoever of tcpilot's processes removes the last filter.
func TestRootFiltersQdisc(t *testing.T) {
	r := newRig(t)
	ours, other, none := []string{"tcpilot_pod_out"}, []string{"other"}, []string(nil)
	for name, c := range map[string]struct {
		before, after func(t *testing.T, ifindex int)
		qdisc         string
		left          []string
	}{
		"ours":      {},
		"of others": {before: func(t *testing.T, ifindex int) { testenv.AddClsact(t, ifindex) }, qdisc: "clsact"},
		"a filter of others was there": {before: func(t *testing.T, ifindex int) {
			testenv.AttachFilter(t, ifindex, testenv.PassingProgram(t, "other"), ebpf.AttachTCXIngress, 1, 1)
		}, qdisc: "clsact", left: other},
		"a filter of others came": {after: func(t *testing.T, ifindex int) {
			testenv.AttachFilter(t, ifindex, testenv.PassingProgram(t, "other"), ebpf.AttachTCXIngress, 1, 1)
		}, qdisc: "clsact", left: other},
		"a filter of others came and went": {after: func(t *testing.T, ifindex int) {
			testenv.AttachFilter(t, ifindex, testenv.PassingProgram(t, "other"), ebpf.AttachTCXEgress, 1, 1)()
		}},
		"one filter was removed": {after: func(t *testing.T, ifindex int) {
			f, err := findFilter(&program{name: "tcpilot_pod_out"}, ifindex)
			if err == nil {
				err = rtnetlink.DeleteFilter(f.Filter)
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
	} {
		for how, end := range map[string]func(r *rig) error{
			"not wanted": func(r *rig) error {
				w := r.wanted()
				r.set(&Wanted{Pods: w.Pods[1:]})
				return nil
			},
			"next process": func(r *rig) error {
				_ = r.links.Close()
				r.openFilters()
				r.set(r.wanted())
				return r.links.Detach()
			},
			"next process does not want it": func(r *rig) error {
				_ = r.links.Close()
				r.openFilters()
				w := r.wanted()
				r.set(&Wanted{Pods: w.Pods[1:]})
				return nil
			},
			"no process": func(r *rig) error {
				_ = r.links.Close()
				_, err := remove(filters{}, r.dir)
				return err
			},
		} {
			if name != "ours" && name != "a filter of others came" && how != "next process" {
				continue
			}
			t.Run(name+"/"+how, func(t *testing.T) {
				r.node.Enter(t)
				r.a = r.node.AddPod(t)
				if c.before != nil {
					c.before(t, r.a.HostIndex)
				}
				r.openFilters()
				r.set(r.wanted())
				if c.after != nil {
					c.after(t, r.a.HostIndex)
				} else {
					in := ours
					if c.left != nil {
						in = append(slices.Clone(c.left), ours...)
					}
					r.check(t, "attached", r.a.HostIndex, "clsact", in, []string{"tcpilot_pod_in"})
				}
				if err := end(r); err != nil {
					t.Error(err)
				}
				r.check(t, "removed", r.a.HostIndex, c.qdisc, c.left, none)
				r.check(t, "removed", r.wire(), "", none, none)
				if err := r.links.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// If somebody removes a filter, or the qdisc with all of them, they are attached again, which is logged.
func TestRootFiltersRemovedByOthers(t *testing.T) {
	for what, remove := range map[string]func(ifindex int) error{
		"qdisc": rtnetlink.DeleteClsact,
		"filter": func(ifindex int) error {
			f, err := findFilter(&program{name: "tcpilot_pod_in", at: ebpf.AttachTCXEgress}, ifindex)
			if err != nil {
				return err
			}
			return rtnetlink.DeleteFilter(f.Filter)
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.openFilters()
			var logged bytes.Buffer
			r.links.log = slog.New(slog.NewTextHandler(&logged, nil))
			r.set(r.wanted())
			r.set(r.wanted())
			if logged.Len() > 0 {
				t.Errorf("logged: %s", logged.String())
			}
			if err := remove(r.a.HostIndex); err != nil {
				t.Fatal(err)
			}
			r.set(r.wanted())
			if !strings.Contains(logged.String(), "somebody else removed a program") {
				t.Errorf("logged: %q", logged.String())
			}
			r.check(t, "again", r.a.HostIndex, "clsact", []string{"tcpilot_pod_out"}, []string{"tcpilot_pod_in"})
			if got := r.grown(func() { exchange(t, r.a.NS, r.b.NS, r.b.V4, 1000) }); !slices.Equal(keys(got), []string{"pod-to-pod"}) {
				t.Errorf("%v", got)
			}
			if err := r.links.Detach(); err != nil {
				t.Error(err)
			}
			r.check(t, "detached", r.a.HostIndex, "", nil, nil)
		})
	}
}

// vanishing has filters that somebody else removes once they are found.
type vanishing struct{ filters }

func (v vanishing) attached(p *program, ifindex int) ([]attachment, bool, error) {
	ours, inForce, err := v.filters.attached(p, ifindex)
	for _, a := range ours {
		err = errors.Join(err, rtnetlink.DeleteFilter(a.(*filter).Filter))
	}
	return ours, inForce, err
}

// Somebody else removes the filters of an earlier process while this one takes them over: those that it attaches instead stay.
func TestRootFiltersRemovedMeanwhile(t *testing.T) {
	r := newRig(t)
	r.openFilters()
	r.set(r.wanted())
	if err := r.links.Close(); err != nil {
		t.Fatal(err)
	}
	r.openFilters()
	r.links.way = vanishing{}
	r.set(r.wanted())
	r.check(t, "taken over", r.a.HostIndex, "clsact", []string{"tcpilot_pod_out"}, []string{"tcpilot_pod_in"})
	if err := r.links.Detach(); err != nil {
		t.Error(err)
	}
}

// A priority that somebody else uses for another protocol, or with tcpilot's handle, is left to them. If they use all,
// the reason is reported.
func TestRootFiltersPriorities(t *testing.T) {
	r := newRig(t)
	a := r.a.HostIndex
	testenv.AttachFilter(t, a, testenv.PassingProgram(t, "tcpilot_pod_out"), ebpf.AttachTCXIngress, priorities[0], handles["tcpilot_pod_out"])
	forIPv4 := &netlink.BpfFilter{DirectAction: true, Fd: testenv.PassingProgram(t, "other").FD(), Name: "other", FilterAttrs: netlink.FilterAttrs{
		LinkIndex: a, Parent: netlink.HANDLE_MIN_INGRESS, Priority: priorities[1], Protocol: unix.ETH_P_IP}}
	if err := netlink.FilterAdd(forIPv4); err != nil {
		t.Fatal(err)
	}
	others := []string{"other", "tcpilot_pod_out"}
	for range 2 { // processes
		r.openFilters()
		r.set(r.wanted())
		f, err := findFilter(&r.links.programs.podOut, a)
		if err != nil || f == nil || f.Priority != priorities[2] || ebpf.ProgramID(f.Program) != r.links.programs.podOut.id {
			t.Fatalf("%+v, %v", f, err)
		}
		r.check(t, "attached", a, "clsact", append([]string{"tcpilot_pod_out"}, others...), []string{"tcpilot_pod_in"})
		if err := r.links.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := remove(filters{}, r.dir); err != nil {
		t.Error(err)
	}
	r.check(t, "removed", a, "clsact", others, nil)
	testenv.AttachFilter(t, a, testenv.PassingProgram(t, "third"), ebpf.AttachTCXIngress, priorities[2], handles["tcpilot_pod_out"])
	r.openFilters()
	w := r.wanted()
	missing, err := r.links.Set(w)
	if reason := missing.Pods[w.Pods[0].Cookie]; err != nil || len(missing.Pods) != 1 || reason == nil || !strings.Contains(reason.Error(), "add filter") {
		t.Errorf("%v, %v", missing, err)
	}
	r.check(t, "refused", a, "clsact", append([]string{"third"}, others...), nil)
}

// A device whose filters are shared with others is refused, and left alone.
func TestRootFiltersShared(t *testing.T) {
	r := newRig(t)
	r.node.Run(t, "tc", "qdisc", "add", "dev", r.a.Host, "ingress_block", "7", "clsact")
	r.openFilters()
	w := r.wanted()
	missing, err := r.links.Set(w)
	if reason := missing.Pods[w.Pods[0].Cookie]; err != nil || len(missing.Pods) != 1 || !errors.Is(reason, unix.EOPNOTSUPP) {
		t.Errorf("%v, %v", missing, err)
	}
	if err := r.links.Detach(); err != nil {
		t.Error(err)
	}
	if kind, err := rtnetlink.ClsactOf(r.a.HostIndex); kind != "clsact" || err != nil {
		t.Errorf("%q, %v", kind, err)
	}
}

// The qdisc ingress has no hook for what leaves: at a pod's device it is refused, and left alone; at an outer device it is used.
func TestRootFiltersIngressQdisc(t *testing.T) {
	r := newRig(t)
	for _, ifindex := range []int{r.a.HostIndex, r.wire()} {
		if err := netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}); err != nil {
			t.Fatal(err)
		}
	}
	r.openFilters()
	w := r.wanted()
	missing, err := r.links.Set(w)
	if reason := missing.Pods[w.Pods[0].Cookie]; err != nil || len(missing.Pods) != 1 || reason == nil || !strings.Contains(reason.Error(), "has a qdisc ingress of somebody else's") {
		t.Errorf("%v, %v", missing, err)
	}
	if got := r.grown(func() { exchange(t, r.b.NS, r.c.NS, r.c.V4, 1000) }); !slices.Equal(keys(got), []string{"pod-to-wire", "wire-to-pod"}) {
		t.Errorf("%v", got)
	}
	r.check(t, "refused", r.a.HostIndex, "ingress", nil, nil)
	if err := r.links.Detach(); err != nil {
		t.Error(err)
	}
	r.check(t, "detached", r.wire(), "ingress", nil, nil)
}

// With a pod's device, its filters are gone, and the next look is without errors.
func TestRootFiltersDeviceGone(t *testing.T) {
	r := newRig(t)
	r.openFilters()
	w := r.wanted()
	r.set(w)
	r.node.IP(t, "link del "+r.a.Host)
	w.Pods = w.Pods[1:]
	r.set(w)
	if held := slices.Collect(maps.Keys(r.links.held)); len(held) != 3 {
		t.Errorf("held: %v", held)
	}
}
