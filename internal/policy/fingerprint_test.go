package policy

import (
	"net/netip"
	"testing"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestFingerprints(t *testing.T) {
	base := func() Rule {
		return Rule{
			Name: "web", Match: Match{Remote: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, Set: params(tcp.RTOMin, 5000),
			Learn: &Learn{Arms: ccs("cubic bbr"), HoldOut: 0.02}, Adapt: []tcp.Field{tcp.InitCwnd}, Rollout: 0.5,
		}
	}
	first := base()
	for name, c := range map[string]struct {
		edit             func(*Rule)
		treatment, whole bool // change
	}{
		"nothing":           {func(*Rule) {}, false, false},
		"a value":           {func(r *Rule) { r.Set = params(tcp.RTOMin, 6000) }, true, true},
		"another field":     {func(r *Rule) { r.Set = params(tcp.DelackMax, 5000) }, true, true},
		"a cc":              {func(r *Rule) { r.CC = ccs("bbr")[0] }, true, true},
		"arms":              {func(r *Rule) { r.Learn.Arms = ccs("cubic") }, true, true},
		"auto":              {func(r *Rule) { r.Learn.Arms = nil }, true, true},
		"switch":            {func(r *Rule) { r.Learn.SwitchRunning = true }, true, true},
		"nothing is learnt": {func(r *Rule) { r.Learn = nil }, true, true},
		"adapt":             {func(r *Rule) { r.Adapt = nil }, true, true},
		"a bound":           {func(r *Rule) { r.Bounds = params(tcp.InitCwnd, 20) }, true, true},
		"on_rto":            {func(r *Rule) { r.OnRTO = OnRTO{ccs("bbr")[0], 3, 1} }, true, true},
		"a limit":           {func(r *Rule) { r.Limit.Total = 1 << 20 }, true, true},
		"match":             {func(r *Rule) { r.Match.Remote = nil }, false, true},
		"rollout":           {func(r *Rule) { r.Rollout = 0.1 }, false, true},
		"hold-out":          {func(r *Rule) { r.Learn.HoldOut = 0.1 }, false, true},
		"watch":             {func(r *Rule) { r.Watch = Watch{class.WatchRTO, 1} }, false, false},
	} {
		r := base()
		c.edit(&r)
		if treatment := r.Treatment() != first.Treatment(); treatment != c.treatment {
			t.Errorf("%s: another treatment: %t", name, treatment)
		}
		if whole := r.Fingerprint() != first.Fingerprint(); whole != c.whole {
			t.Errorf("%s: another rule: %t", name, whole)
		}
	}
}
