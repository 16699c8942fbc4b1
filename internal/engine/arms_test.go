package engine

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// arms: auto excludes arms that are only for rules that name them.
func TestArmsByName(t *testing.T) {
	ledbat := cc("tcpilot_ledbat")
	named := learnRule("background", func(r *policy.Rule) {
		r.Match.Remote = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		r.Learn.Arms = []tcp.CC{cubic, ledbat}
	})
	w := newWorld(t, nil, named, learnRule("all"))
	w.e.SetOffered(append(offer(cubic, bbr, dctcp), congestion.Of(ledbat)), tcp.CC{})
	w.e.Settle(w.now)
	arms := func(addr string) (out []tcp.CC) {
		row, ok := w.sink.lookup(w.sink.table.Classes[0].ID, 0, ip(addr))
		if addr != "198.51.100.1" {
			row, ok = w.sink.lookup(w.sink.table.Classes[1].ID, 0, ip(addr))
		}
		if !ok {
			t.Fatalf("no row for %s", addr)
		}
		for _, a := range row.Policy.Arms[:row.Policy.NumArms] {
			out = append(out, a.CC)
		}
		return out
	}
	if got := arms("198.51.100.1"); !slices.Equal(got, []tcp.CC{cubic, ledbat}) {
		t.Errorf("the rule that names it has %v", got)
	}
	if got := arms("203.0.113.9"); !slices.Equal(got, []tcp.CC{cubic, bbr}) {
		t.Errorf("auto has %v", got)
	}
	if got := w.e.View(time.Unix(0, w.now)).Rules[1].Arms; !slices.Equal(got, []tcp.CC{cubic, bbr}) {
		t.Errorf("auto is shown as %v", got)
	}
}

// A kernel with every module has more congestion controls than a policy can hold.
func TestArmsThatMatterComeFirst(t *testing.T) {
	names := []string{"tcpilot_dctcp", "bic", "cdg", "cubic", "highspeed", "htcp", "hybla", "illinois", "bbr", "tcpilot_cubic", "tcpilot_bbr3"}
	var all []tcp.CC
	for _, name := range names {
		all = append(all, cc(name))
	}
	o := newOffers(offer(all...), tcp.CC{})
	want := []tcp.CC{cubic, bbr, cc("tcpilot_bbr3"), cc("tcpilot_cubic"), cc("tcpilot_dctcp"), cc("bic")}
	if !slices.Equal(o.all[:len(want)], want) {
		t.Errorf("in order %v", o.all)
	}
}

// arms: auto uses tcpilot_bbr3 instead of bbr if it is loaded, and bbr otherwise. A rule that
// names bbr uses bbr. tcpilot_cubic is used beside cubic, because it is not at least as good
// everywhere.
func TestOurOwnReplaceTheKernels(t *testing.T) {
	bbr3 := cc("tcpilot_bbr3")
	for _, c := range []struct {
		name  string
		offer []congestion.Control
		want  []tcp.CC
	}{
		{"both", offer(cubic, bbr, bbr3), []tcp.CC{cubic, bbr3}},
		{"one beside the kernel's", offer(cubic, bbr, bbr3, cc("tcpilot_cubic")), []tcp.CC{cubic, bbr3, cc("tcpilot_cubic")}},
		{"the kernel's alone", offer(cubic, bbr), []tcp.CC{cubic, bbr}},
		{"ours only by name", append(offer(cubic, bbr), congestion.Control{CC: bbr3, ByName: true}), []tcp.CC{cubic, bbr}},
	} {
		if got := newOffers(c.offer, tcp.CC{}).auto; !slices.Equal(got, c.want) {
			t.Errorf("%s: auto means %v, want %v", c.name, got, c.want)
		}
	}
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Learn.Arms = []tcp.CC{cubic, bbr} }))
	w.e.SetOffered(offer(cubic, bbr, bbr3), tcp.CC{})
	w.e.Settle(w.now)
	row, _ := w.sink.lookup(w.sink.table.Classes[0].ID, 0, ip("203.0.113.9"))
	if row.Policy.NumArms != 2 || row.Policy.Arms[1].CC != bbr {
		t.Errorf("a rule that names bbr has %v", row.Policy.Arms[:row.Policy.NumArms])
	}
}

func TestStatesOfArms(t *testing.T) {
	as := newArmStates()
	expect := func(when string, want map[tcp.CC]string, retired ...tcp.CC) {
		t.Helper()
		v := as.view()
		for cc, state := range want {
			if got, _ := v.State(cc); got != state {
				t.Errorf("%s: %s is %s", when, cc, got)
			}
		}
		if len(v.All()) != len(want) || !slices.Equal(as.retired, retired) {
			t.Errorf("%s: %v, retired %v", when, v, as.retired)
		}
	}
	if o := newOffers(offer(cubic, bbr), cubic); !as.offer(o) || as.offer(o) {
		t.Error("the same list is another one")
	}
	expect("offered", map[tcp.CC]string{cubic: ArmActive, bbr: ArmActive})
	if !as.failed(bbr, 2) || as.failed(bbr, 3) || as.failed(cubic, 0) {
		t.Error("not retired once")
	}
	expect("refused", map[tcp.CC]string{cubic: ArmActive, bbr: ArmRetired}, bbr)
	if got := as.revive(cubic); len(got) != 0 {
		t.Errorf("revived %v", got)
	}
	if got := as.revive(as.retired...); !slices.Equal(got, []tcp.CC{bbr}) || as.failed(bbr, 3) {
		t.Errorf("revived %v, or retired again without another failure", got)
	}
	expect("revived", map[tcp.CC]string{cubic: ArmActive, bbr: ArmActive})
	as.failed(bbr, 4)
	as.offer(newOffers(offer(bbr, reno), reno))
	expect("another list", map[tcp.CC]string{cubic: ArmMissing, bbr: ArmActive, reno: ArmActive})
}
