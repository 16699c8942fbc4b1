package daemon

import (
	"errors"
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cc"
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestOffers(t *testing.T) {
	c := &controls{
		wanted:    []tcp.CC{named("tcpilot_bbr3"), named("tcpilot_prague")},
		requested: map[tcp.CC]bool{named("tcpilot_cubic"): true, named("tcpilot_ledbat"): false},
		users:     map[tcp.CC]congestion.Control{named("mine"): {CC: named("mine"), NeedsECN: true, ByName: true}},
		leaving:   map[tcp.CC]bool{named("gone"): true},
	}
	c.inKernel = parseCCs([]string{"cubic", "dctcp", "gone", "mine", "tcpilot_bbr3", "tcpilot_cubic", "tcpilot_dctcp",
		"tcpilot_ledbat", cc.TestName})
	want := []congestion.Control{
		{CC: named("cubic")},
		{CC: named("dctcp"), NeedsECN: true},
		{CC: named("mine"), NeedsECN: true, ByName: true},
		{CC: named("tcpilot_bbr3")},
		{CC: named("tcpilot_cubic")}, // loaded by request, and for auto
		{CC: named("tcpilot_ledbat"), ByName: true},
	}
	same := func(a, b congestion.Control) bool {
		return a.CC == b.CC && a.NeedsECN == b.NeedsECN && a.ByName == b.ByName
	}
	if got := c.offers(); !slices.EqualFunc(got, want, same) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestWantedControls(t *testing.T) {
	c := &controls{wanted: parseCCs([]string{"tcpilot_bbr3", "tcpilot_dctcp"}), requested: map[tcp.CC]bool{named("tcpilot_cubic"): true}}
	c.forget(named("tcpilot_bbr3"))
	c.forget(named("tcpilot_cubic"))
	if c.isWanted(named("tcpilot_bbr3")) || !c.isWanted(named("tcpilot_dctcp")) || len(c.requested) != 0 {
		t.Errorf("%v, requested %v", c.wanted, c.requested)
	}
	c.failed = map[tcp.CC]error{named("tcpilot_dctcp"): errors.New("no such thing")}
	if f := c.features(); len(f) != 1 || f[0].Active || !f[0].Wanted || f[0].Why != "no such thing" {
		t.Errorf("%+v", f)
	}
	c.inKernel = c.wanted // by another process
	if f := c.features(); len(f) != 1 || !f[0].Active || f[0].Why != "" {
		t.Errorf("%+v", f)
	}
}

func TestRulesNaming(t *testing.T) {
	rules := []policy.Rule{
		{Name: "a", CC: named("mine")}, {Name: "b", Learn: &policy.Learn{Arms: parseCCs([]string{"cubic", "mine"})}},
		{Name: "c", Learn: &policy.Learn{}}, {Name: "d", Leave: true},
	}
	if got := rulesNaming(rules, named("mine")); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %v", got)
	}
}

// The diagnosis names the states of controls that are not registered as 'tcpilot cc list' does.
func TestControlsOfTheDiagnosis(t *testing.T) {
	doc := api.Doctor{Arms: engine.Arms{Active: parseCCs([]string{"cubic", "tcpilot_bbr3"}), Missing: map[tcp.CC]string{}}}
	row := func(name string, state cc.State, why string) cc.Control {
		return cc.Control{Control: congestion.Control{CC: named(name)}, State: state, Why: why}
	}
	addControls(&doc, []cc.Control{row("tcpilot_bbr3", cc.Loaded, ""), row("tcpilot_cubic", cc.Available, ""), row("tcpilot_dctcp", cc.Absent, "too old")})
	for name, want := range map[string][2]string{
		"cubic": {"active"}, "tcpilot_bbr3": {"active"}, "tcpilot_cubic": {"available"}, "tcpilot_dctcp": {"missing", "too old"},
	} {
		if state, why := doc.Arms.State(named(name)); state != want[0] || why != want[1] {
			t.Errorf("%s is %s (%s), want %s", name, state, why, want)
		}
	}
	if all := doc.Arms.All(); len(all) != 4 {
		t.Errorf("it lists %v", all)
	}
}
