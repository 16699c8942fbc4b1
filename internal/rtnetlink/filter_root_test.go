package rtnetlink_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

const loopback = 1

func idOf(t *testing.T, p *ebpf.Program) uint32 {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return uint32(id)
}

// inNewNS runs a test in a network namespace of its own.
func inNewNS(t *testing.T, f func()) {
	t.Helper()
	testenv.Root(t)
	if err := netns.InNew(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestRootFilters(t *testing.T) {
	inNewNS(t, func() {
		at := rtnetlink.Filter{Device: loopback, Hook: rtnetlink.Egress, Priority: 7, Handle: 0x1234, Name: "first"}
		find := func(program uint32, name string) {
			t.Helper()
			f, ok, err := rtnetlink.FindFilter(at)
			want := at
			want.Kind, want.Program, want.Name = "bpf", program, name
			if err != nil || ok != (program != 0) || ok && f != want {
				t.Errorf("%+v %v, %v, want %+v", f, ok, err, want)
			}
		}
		kind := func(want string) {
			t.Helper()
			if got, err := rtnetlink.ClsactOf(loopback); err != nil || got != want {
				t.Errorf("qdisc %q, %v, want %q", got, err, want)
			}
		}
		first, second := testenv.PassingProgram(t, "first"), testenv.PassingProgram(t, "second")
		kind("")
		find(0, "")
		if err := rtnetlink.AddFilter(at, first.FD()); err == nil {
			t.Error("a filter without a qdisc")
		}
		if qdisc, err := rtnetlink.AddFilterAndClsact(at, first.FD()); qdisc != nil || err != nil {
			t.Fatal(qdisc, err)
		}
		kind("clsact")
		find(idOf(t, first), "first")
		if qdisc, err := rtnetlink.AddFilterAndClsact(at, second.FD()); !errors.Is(qdisc, unix.EEXIST) || !errors.Is(err, unix.EEXIST) {
			t.Error("twice:", qdisc, err)
		}
		find(idOf(t, first), "first")
		at.Name = "other"
		if err := rtnetlink.ReplaceFilter(at, second.FD()); err != nil {
			t.Error(err)
		}
		find(idOf(t, second), "other")

		another := at
		another.Priority = 9
		if err := rtnetlink.AddFilter(another, first.FD()); err != nil {
			t.Error(err)
		}
		for most, want := range [][]uint16{nil, {7}, {7, 9}, {7, 9}} {
			var got []uint16
			if most > 0 {
				if err := rtnetlink.EachFilter(loopback, rtnetlink.Egress, func(f rtnetlink.Filter) bool {
					got = append(got, f.Priority)
					return len(got) < most
				}); err != nil {
					t.Error(err)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("at most %d: %v, want %v", most, got, want)
			}
		}
		if err := rtnetlink.EachFilter(loopback, rtnetlink.Ingress, func(f rtnetlink.Filter) bool { t.Errorf("at the other hook: %+v", f); return true }); err != nil {
			t.Error(err)
		}

		if err := rtnetlink.DeleteFilter(at); err != nil {
			t.Error(err)
		}
		find(0, "")
		if err := rtnetlink.DeleteFilter(at); !errors.Is(err, unix.ENOENT) {
			t.Error("removed twice:", err)
		}
		if err := rtnetlink.ReplaceFilter(at, first.FD()); !errors.Is(err, unix.ENOENT) {
			t.Error("replaced one that is gone:", err)
		}
		if err := rtnetlink.DeleteClsact(loopback); err != nil {
			t.Error(err)
		}
		kind("")
		at = another
		find(0, "")
	})
}

// A dump of more filters than one answer of the kernel has room for.
func TestRootManyFilters(t *testing.T) {
	inNewNS(t, func() {
		program := testenv.PassingProgram(t, "one")
		testenv.AddClsact(t, loopback)
		const number = 600
		for i := range uint32(number) {
			if err := rtnetlink.AddFilter(rtnetlink.Filter{Device: loopback, Hook: rtnetlink.Ingress, Priority: 1, Handle: i + 1, Name: "x"}, program.FD()); err != nil {
				t.Fatal(err)
			}
		}
		seen := map[uint32]bool{}
		if err := rtnetlink.EachFilter(loopback, rtnetlink.Ingress, func(f rtnetlink.Filter) bool { seen[f.Handle] = true; return true }); err != nil || len(seen) != number {
			t.Errorf("%d filters, %v", len(seen), err)
		}
	})
}

func TestRootFiltersOfNoDevice(t *testing.T) {
	inNewNS(t, func() {
		if _, err := rtnetlink.ClsactOf(99); !errors.Is(err, unix.ENODEV) {
			t.Error(err)
		}
		if _, _, err := rtnetlink.FindFilter(rtnetlink.Filter{Device: 99, Hook: rtnetlink.Ingress, Priority: 1, Handle: 1}); !errors.Is(err, unix.ENODEV) {
			t.Error(err)
		}
		if err := rtnetlink.EachFilter(99, rtnetlink.Ingress, func(rtnetlink.Filter) bool { return true }); err != nil {
			t.Error(err)
		}
	})
}
