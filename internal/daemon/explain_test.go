package daemon

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// An address of which nothing is known has no path whose figures could be shown: if its rule is
// left to the default, those of the rule are.
func TestExplainSaysWhyARuleIsLeftToTheDefault(t *testing.T) {
	const figures = "connections were 0.50 times as fast as with the default"
	now := time.Unix(1_700_000_000, 0)
	e := engine.Explanation{Rule: &engine.RuleState{Name: "all"}, IsRoot: true, Entry: &engine.PathState{
		Reason: policy.WorseThanDefault.String(), LeftToDefault: &engine.LeftToDefault{Why: figures, Since: now, Until: now.Add(time.Minute)},
	}}
	var out api.Explanation
	if explainEntry(&out, &e, now); !strings.Contains(out.Why, figures) || out.Path != nil {
		t.Errorf("%+v", out)
	}
	e.IsRoot, out = false, api.Explanation{} // a path shows its own
	if explainEntry(&out, &e, now); strings.Contains(out.Why, figures) || out.Path == nil {
		t.Errorf("%+v", out)
	}
}

// A field that the rule adapts, and that has the kernel's value, is not applied, and has its reason.
func TestExplainFieldsLeftToTheKernel(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, left := range []*engine.LeftToDefault{nil, {Why: "slower", Until: now.Add(time.Minute)}} {
		e := engine.Explanation{Rule: &engine.RuleState{Name: "all"}, Entry: &engine.PathState{
			Set:           []engine.Setting{{Field: "syn_rto", Value: 125, Unit: "ms", Reason: policy.FromMetrics.String(), Why: "srtt"}},
			Kernel:        []engine.KernelField{{Field: "init_cwnd", Why: "0.35% of the recent packets were lost"}},
			LeftToDefault: left,
		}}
		want := api.FieldWhy{Setting: engine.Setting{Field: "init_cwnd", Reason: "metrics", Why: "0.35% of the recent packets were lost"}, Kernel: true}
		if left != nil {
			want.Reason = "worse-than-default"
		}
		var out api.Explanation
		if explainEntry(&out, &e, now); len(out.Fields) != 2 || !out.Fields[0].Applied || out.Fields[1] != want {
			t.Errorf("%+v, want %+v", out.Fields, want)
		}
	}
}

// What a rule sets is not applied while the path is left to the default, nor while the rule applies to none of its connections.
func TestExplainWhatARuleWouldSet(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	set := []engine.Setting{{Field: "sndbuf", Value: 65536, Unit: "B", Reason: policy.ByRule.String()},
		{Field: "notsent_lowat", Value: 65536, Unit: "B", Reason: policy.ByObjective.String()}}
	for name, c := range map[string]struct {
		left    *engine.LeftToDefault
		rollout engine.Rollout
		applied bool
		reason  string // of sndbuf
	}{
		"in use":              {nil, engine.Rollout{Share: 0.5}, true, "rule"},
		"left to the default": {&engine.LeftToDefault{Why: "slower", Until: now.Add(time.Minute)}, engine.Rollout{Share: 1}, false, "worse-than-default"},
		"taken back":          {nil, engine.Rollout{By: engine.ByGuard}, false, "rule"},
	} {
		e := engine.Explanation{Rule: &engine.RuleState{Name: "all"}, Entry: &engine.PathState{Set: set, LeftToDefault: c.left}}
		out := api.Explanation{Rollout: &c.rollout, Mode: engine.ModeTune}
		explainEntry(&out, &e, now)
		for _, f := range out.Fields {
			if f.Applied != c.applied {
				t.Errorf("%s: %s is applied: %t, %s", name, f.Field, f.Applied, f.Why)
			}
		}
		if out.Fields[0].Reason != c.reason || !c.applied && out.Fields[0].Why == "rule all sets it" {
			t.Errorf("%s: %+v", name, out.Fields[0])
		}
	}
}

// A congestion control that a rule sets is not one that is tried.
func TestExplainOfASetCongestionControl(t *testing.T) {
	e := engine.Explanation{Rule: &engine.RuleState{Name: "all", CC: tcp.CCOf("reno")}, Entry: &engine.PathState{Arms: []engine.PathArm{{CC: tcp.CCOf("reno"), Weight: 1}, {CC: tcp.CCOf("bbr"), Weight: 1}}}}
	var out api.Explanation
	explainEntry(&out, &e, time.Unix(1, 0))
	if len(out.Arms) != 2 || out.Arms[0].Why != "rule all sets it" || out.Arms[1].Why != "not tried on this path yet" {
		t.Errorf("%+v", out.Arms)
	}
}

// What the administrator of the host has changed is left to the kernel in the host's network namespace, and not in that of a pod, nor
// for a rule that names the namespace.
func TestExplainYieldsOfTheHost(t *testing.T) {
	const own, other = 1, 2
	rule := func(name string, m policy.Match) policy.Rule {
		r := policy.Rule{Name: name, Match: m}
		r.Set.Set(tcp.Sndbuf, 65536)
		return r
	}
	e := engine.New(engine.Options{Learner: learn.DefaultThompson(), Sink: engine.Discard{}})
	err := e.Start([]policy.Rule{rule("named", policy.Match{NetNS: []string{"1"}, RemotePort: []policy.PortRange{{First: 80, Last: 80}}}), rule("all", policy.Match{})},
		policy.Resolver{}, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if !e.SetYield(engine.Yield{Sysctl: "net.ipv4.tcp_wmem"}, engine.Default{Field: tcp.Sndbuf}) {
		t.Fatal("not yielded")
	}
	d := &Daemon{engine: e, sysctls: &sysctls{own: own, defaults: map[string]engine.Default{"net.ipv4.tcp_wmem": {Field: tcp.Sndbuf}},
		owned: map[uint64][]engine.Yield{}}}
	for _, c := range []struct {
		netns   uint64
		port    uint16
		applied bool
	}{{own, 443, false}, {other, 443, true}, {own, 80, true}} {
		x := e.Explain(&class.Conn{Remote: netip.MustParseAddr("203.0.113.9"), RemotePort: c.port, NetNS: c.netns, Outgoing: true}, time.Unix(0, 1))
		out := api.Explanation{Mode: engine.ModeTune, Rollout: x.Rule.Rollout}
		explainEntry(&out, &x, time.Unix(0, 1))
		d.explainYields(&out, &x, c.netns)
		if len(out.Fields) != 1 || out.Fields[0].Applied != c.applied || (out.Fields[0].Reason == policy.YieldedSysctl.String()) == c.applied {
			t.Errorf("%+v: %+v", c, out.Fields)
		}
	}
	for _, r := range e.Summary(time.Unix(0, 1)).Rules {
		if yielded := r.Set[0].Reason == policy.YieldedSysctl.String(); yielded != (r.Name == "all") {
			t.Errorf("rule %s: %+v", r.Name, r.Set)
		}
	}
}
