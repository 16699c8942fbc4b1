package policy

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// fixedLearner gives the shares that it is told to.
type fixedLearner struct {
	shares  map[string]float64
	best    string
	changed bool
}

func (l *fixedLearner) Name() string                                 { return "fixed" }
func (l *fixedLearner) Observe(*learn.Belief, tcp.CC, learn.Outcome) {}
func (l *fixedLearner) ObserveHoldOut(*learn.Belief, learn.Outcome)  {}
func (l *fixedLearner) StdDev(*learn.ArmBelief, int64) float64       { return 0 }
func (l *fixedLearner) Changed(*learn.Belief, int64) bool            { return l.changed }
func (l *fixedLearner) Weights(w []float64, arms []tcp.CC, _ int, b, _ *learn.Belief, _ int64) int {
	best := -1
	for i, cc := range arms {
		w[i] = l.shares[cc.String()]
		if cc.String() == l.best {
			best = i
		}
	}
	_ = b.Arms // never nil
	return best
}

func ccs(names string) []tcp.CC {
	var list []tcp.CC
	for _, n := range strings.Fields(names) {
		cc, _ := tcp.ParseCC(n)
		list = append(list, cc)
	}
	return list
}

func scored() *learn.Belief {
	return &learn.Belief{Arms: []learn.ArmBelief{{Count: 1}}}
}

func TestDecide(t *testing.T) {
	even := &fixedLearner{shares: map[string]float64{"cubic": 0.5, "bbr": 0.5}}
	sure := &fixedLearner{shares: map[string]float64{"cubic": 0.1, "bbr": 0.9}, best: "bbr"}
	torn := &fixedLearner{shares: map[string]float64{"cubic": 0.4, "bbr": 0.6}, best: "bbr"}
	gone := &fixedLearner{shares: map[string]float64{"cubic": 0.5, "bbr": 0.5}, changed: true}
	set := Rule{Set: params(tcp.RTOMin, 5000)}
	auto := Rule{Learn: &Learn{HoldOut: 0.5}}
	both := Rule{Set: params(tcp.RTOMin, 5000), Learn: &Learn{HoldOut: 0.5}}
	fixed := Rule{CC: ccs("bbr")[0]}
	some := Rule{Learn: &Learn{Arms: ccs("reno bbr")}}
	offered := ccs("cubic bbr")

	for _, c := range []struct {
		name   string
		in     Input
		reason Reason
		arms   string // names and weights
		best   int
		fields uint64
		hold   uint32
	}{
		{"no rule", Input{}, NoRule, "", -1, 0, 0},
		{"leave", Input{Rule: &Rule{Leave: true, Set: set.Set}}, LeftAlone, "", -1, 0, 0},
		{"set", Input{Rule: &set}, ByRule, "", -1, 1 << tcp.RTOMin, 0},
		{"fixed cc", Input{Rule: &fixed}, ByRule, "bbr:65536", 0, 0, 0},
		{"fixed cc, retired", Input{Rule: &fixed, Retired: ccs("bbr")}, ArmRetired, "", -1, 0, 0},
		{"new path", Input{Rule: &auto, Arms: offered, Learner: even}, NewPath, "cubic:32768 bbr:32768", -1, 0, 32768},
		{"inherited", Input{Rule: &auto, Arms: offered, Learner: sure, Parent: scored()}, Inherited, "cubic:6553 bbr:58983", 1, 0, 32768},
		{"exploring", Input{Rule: &auto, Arms: offered, Learner: torn, Belief: scored()}, Exploring, "cubic:26214 bbr:39322", 1, 0, 32768},
		{"learned", Input{Rule: &auto, Arms: offered, Learner: sure, Belief: scored()}, Learned, "cubic:6553 bbr:58983", 1, 0, 32768},
		{"changed", Input{Rule: &auto, Arms: offered, Learner: gone, Belief: scored()}, ChangeDetected, "cubic:32768 bbr:32768", -1, 0, 32768},
		{"set and learn", Input{Rule: &both, Arms: offered, Learner: even}, NewPath, "cubic:32768 bbr:32768", -1, 1 << tcp.RTOMin, 32768},
		{"some of the rule's arms", Input{Rule: &some, Arms: offered, Learner: even}, NewPath, "bbr:65536", -1, 0, 0},
		{"retired arm", Input{Rule: &auto, Arms: offered, Retired: ccs("bbr"), Learner: even}, NewPath, "cubic:65536", -1, 0, 32768},
		{"auto, except those used by name only", Input{Rule: &auto, Arms: offered, ByName: ccs("bbr"), Learner: even}, NewPath, "cubic:65536", -1, 0, 32768},
		{"by name", Input{Rule: &some, Arms: offered, ByName: ccs("bbr"), Learner: even}, NewPath, "bbr:65536", -1, 0, 0},
		{"set, rolled out", Input{Rule: &set, NotRolledOut: 0.9}, ByRule, "", -1, 1 << tcp.RTOMin, 58982},
		{"fixed cc, rolled out", Input{Rule: &fixed, NotRolledOut: 0.5}, ByRule, "bbr:65536", 0, 0, 32768},
		{"learn, rolled out", Input{Rule: &auto, Arms: offered, Learner: even, NotRolledOut: 0.5}, NewPath, "cubic:32768 bbr:32768", -1, 0, 49152},
		{"nothing, rolled out", Input{Rule: &Rule{}, NotRolledOut: 0.5}, ByRule, "", -1, 0, 0},
		{"set, observed", Input{Rule: &set, Observe: true}, ByRule, "", -1, 1 << tcp.RTOMin, One},
		{"on_rto, observed", Input{Rule: &Rule{OnRTO: OnRTO{ccs("bbr")[0], 3, 1}}, Observe: true}, ByRule, "", -1, 0, One},
		{"on_rto", Input{Rule: &Rule{OnRTO: OnRTO{ccs("bbr")[0], 3, 1}}}, ByRule, "", -1, 0, 0},
		{"request, observed", Input{Rule: &Rule{Set: params(tcp.SynRTO, 100)}, Observe: true}, ByRule, "", -1, 0, One},
		{"request, taken back", Input{Rule: &Rule{Set: params(tcp.SynRTO, 100)}, NotRolledOut: 1}, ByRule, "", -1, 0, One},
		{"request, rolled out", Input{Rule: &Rule{Set: params(tcp.SynRTO, 100)}, NotRolledOut: 0.5}, ByRule, "", -1, 1 << tcp.SynRTO, 32768},
		{"learn, observed", Input{Rule: &auto, Arms: offered, Learner: sure, Belief: scored(), Observe: true}, Learned, "cubic:6553 bbr:58983", 1, 0, One},
		{"all arms retired", Input{Rule: &some, Arms: offered, Retired: ccs("bbr"), Learner: even}, ArmRetired, "", -1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Decide(&c.in)
			if d.Reason != c.reason || d.Best != c.best || d.Policy.Params.Mask() != c.fields || d.Policy.HoldOut != c.hold {
				t.Errorf("got %s, best %d, fields %b, hold-out %d; want %s, %d, %b, %d", d.Reason, d.Best,
					d.Policy.Params.Mask(), d.Policy.HoldOut, c.reason, c.best, c.fields, c.hold)
			}
			if got := armsOf(&d.Policy); got != c.arms {
				t.Errorf("arms: got %q, want %q", got, c.arms)
			}
		})
	}
}

// A partial rollout is drawn in slices of time, also of a rule that only sets values. A rule that is
// rolled out to all connections, or to none, has no slices if it learns nothing.
func TestRolloutIsDrawnInSlices(t *testing.T) {
	set := Rule{Set: params(tcp.RTOMin, 5000)}
	for _, c := range []struct {
		in                       Input
		slice                    uint8
		connections, wholeSlices uint32
	}{
		{Input{Rule: &set, Slice: 30, NotRolledOut: 0.75}, 30, 0, One * 3 / 4},
		{Input{Rule: &set, Slice: 30}, 0, 0, 0},
		{Input{Rule: &set, Slice: 30, NotRolledOut: 1}, 0, One, 0},
		{Input{Rule: &set, Slice: 30, NotRolledOut: 0.75, Observe: true}, 0, One, 0},
		{Input{Rule: &set, NotRolledOut: 0.75}, 0, One * 3 / 4, 0},
	} {
		p := Decide(&c.in).Policy
		if p.Slice != c.slice || p.HoldOut != c.connections || p.HoldSlices != c.wholeSlices {
			t.Errorf("%+v: slices of 2^%d ns, hold-out %d of connections and %d of slices; want %d, %d, %d",
				c.in, p.Slice, p.HoldOut, p.HoldSlices, c.slice, c.connections, c.wholeSlices)
		}
	}
}

// If many connections overlap, the hold-out is drawn in slices only. It grows while slices say that the
// default is better, to half of them at most, unless the rule has none.
func TestHoldOutIfManyOverlap(t *testing.T) {
	known := &learn.Belief{Count: 1e6}
	for _, c := range []struct {
		holdOut        float64
		many           bool
		more           float64
		single, slices uint32
	}{
		{0.02, false, 0, One / 100, 662}, // 662 of 65536: 1 % of those that are not drawn one by one
		{0.02, true, 1, 0, One / 50},
		{0.02, true, 5, 0, One / 10},
		{0.02, true, 1000, 0, One / 2},
		{0.5, true, 1000, 0, One / 2},
		{0, true, 1000, 0, 0},
	} {
		r := &Rule{Learn: &Learn{HoldOut: c.holdOut}}
		p := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Belief: known, Now: adaptNow, Slice: 33, Many: c.many, MoreHeldOut: c.more}).Policy
		if math.Abs(float64(p.HoldOut)-float64(c.single)) > 1 || math.Abs(float64(p.HoldSlices)-float64(c.slices)) > 1 {
			t.Errorf("%+v: hold-out %d of connections, %d of slices", c, p.HoldOut, p.HoldSlices)
		}
	}
}

// auto means tcpilot_bbr3 in place of bbr, as long as it can be used on the path.
func TestAutoReplacesTheKernelsControl(t *testing.T) {
	for _, c := range []struct{ rule, byName, retired, want string }{
		{"", "", "", "cubic tcpilot_bbr3"},
		{"", "", "tcpilot_bbr3", "cubic bbr"},
		{"", "tcpilot_bbr3", "", "cubic bbr"},
		{"", "", "bbr", "cubic tcpilot_bbr3"},
		{"bbr cubic tcpilot_bbr3", "", "", "bbr cubic tcpilot_bbr3"},
	} {
		in := Input{
			Rule: &Rule{Learn: &Learn{Arms: ccs(c.rule)}}, Arms: ccs("cubic bbr tcpilot_bbr3"),
			ByName: ccs(c.byName), Retired: ccs(c.retired),
		}
		var got []string
		arms, _ := in.usable()
		for _, cc := range arms {
			got = append(got, cc.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("rule %q, only by name %q, retired %q: %v, want %s", c.rule, c.byName, c.retired, got, c.want)
		}
	}
}

func armsOf(p *path.Policy) string {
	return joinFunc(p.Arms[:p.NumArms], " ", func(a path.Arm) string {
		return a.CC.String() + ":" + FormatValue(tcp.Mark, uint64(a.Weight))
	})
}

func TestWeighSumsToOne(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		n := 1 + r.IntN(path.MaxArms)
		arms, shares := make([]path.Arm, n), make([]float64, n)
		sum := 0.0
		for i := range shares {
			shares[i] = math.Exp(-12 * r.Float64())
			if r.IntN(4) == 0 {
				shares[i] = 0
			}
			sum += shares[i]
		}
		weigh(arms, shares)
		total := uint32(0)
		for i, a := range arms {
			total += a.Weight
			if p := shares[i] / sum; p >= 1.0/One && a.Weight == 0 || p == 0 && sum > 0 && a.Weight != 0 {
				t.Fatalf("share %g of %v got weight %d", p, shares, a.Weight)
			} else if sum > 0 && math.Abs(p*One-float64(a.Weight)) > path.MaxArms {
				t.Fatalf("share %g of %v got weight %d", p, shares, a.Weight)
			}
		}
		if total != One {
			t.Fatalf("%v: weights sum to %d", shares, total)
		}
	}
}

func TestWeighSurvivesNonsense(t *testing.T) {
	for _, shares := range [][]float64{{math.NaN(), 1}, {-1, 2}, {0, 0}, {math.Inf(1), 1}, {math.MaxFloat64, math.MaxFloat64}} {
		arms := make([]path.Arm, 2)
		weigh(arms, shares)
		if arms[0].Weight != One/2 || arms[1].Weight != One/2 {
			t.Errorf("%v: got %v", shares, arms)
		}
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	in := &Input{
		Rule: &Rule{Set: params(tcp.RTOMin, 5000), Learn: &Learn{HoldOut: 0.02}}, Arms: ccs("cubic bbr reno"),
		Learner: &evenLearner{}, Belief: scored(),
	}
	if n := testing.AllocsPerRun(100, func() { Decide(in) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

type evenLearner struct{ fixedLearner }

func (*evenLearner) Weights(w []float64, _ []tcp.CC, _ int, _, _ *learn.Belief, _ int64) int {
	for i := range w {
		w[i] = 1 / float64(len(w))
	}
	return -1
}

func TestReasonsAreNamedOnce(t *testing.T) {
	seen := make(map[string]bool)
	for _, r := range Reasons() {
		if r.String() == "" || seen[r.String()] {
			t.Errorf("reason %d: name %q", r, r)
		}
		seen[r.String()] = true
	}
	if Reason(200).String() != "unknown" {
		t.Error("a reason outside the list has a name")
	}
}

func TestShareOf(t *testing.T) {
	for share, want := range map[float64]uint32{0: 0, -1: 0, 0.02: 1311, 1e-9: 1, 1: One, 7: One} {
		if got := shareOf(share); got != want {
			t.Errorf("%g: got %d, want %d", share, got, want)
		}
	}
}

// What is held out of a path: half of the configured share connection by connection, the
// rest by slices of time, and more of a path of which little is known.
func TestHoldOutFallsWithEvidence(t *testing.T) {
	for _, c := range []struct {
		name       string
		share      float64
		slice      uint8
		known      uint64
		conns, all float64
	}{
		{"new path", 0.02, 30, 0, 0.01, 0.1},
		{"some evidence", 0.02, 30, 25, 0.01, 0.05},
		{"well known", 0.02, 30, 10_000, 0.01, 0.02},
		{"more is configured", 0.5, 30, 0, 0.25, 0.5},
		{"no slices", 0.02, 0, 0, 0.02, 0.02},
		{"none is wanted", 0, 30, 0, 0, 0},
	} {
		in := Input{
			Rule: &Rule{Learn: &Learn{HoldOut: c.share}}, Arms: ccs("cubic bbr"), Slice: c.slice,
			Learner: &evenLearner{}, Belief: &learn.Belief{Count: c.known, Arms: []learn.ArmBelief{{Count: c.known}}},
		}
		p := Decide(&in).Policy
		all := 1 - (1-float64(p.HoldOut)/One)*(1-float64(p.HoldSlices)/One)
		if p.HoldOut != shareOf(c.conns) || math.Abs(all-c.all) > 1e-4 {
			t.Errorf("%s: %.4f held out one by one, %.4f in all, want %.4f and %.4f", c.name, float64(p.HoldOut)/One, all, c.conns, c.all)
		}
	}
}

// A path that does worse than with the default gets nothing, not even the rule's fields.
func TestDecideLeavesAPathToTheDefault(t *testing.T) {
	in := Input{
		Rule: &Rule{Set: params(tcp.RTOMin, 5000), Learn: &Learn{HoldOut: 0.02}}, Arms: ccs("cubic bbr"),
		Learner: &evenLearner{}, LeftToDefault: true,
	}
	if d := Decide(&in); d.Reason != WorseThanDefault || d.Policy != (path.Policy{}) {
		t.Errorf("%s: %+v", d.Reason, d.Policy)
	}
}

// The default is always the first arm, whatever the rule lists.
func TestDefaultIsAnArm(t *testing.T) {
	for rule, want := range map[string]string{"": "bbr cubic tcpilot_bbr3", "cubic": "bbr cubic", "bbr cubic": "bbr cubic"} {
		in := Input{Rule: &Rule{Learn: &Learn{Arms: ccs(rule)}}, Arms: ccs("cubic bbr tcpilot_bbr3"), Default: ccs("bbr")[0]}
		var got []string
		arms, base := in.usable()
		for _, cc := range arms {
			got = append(got, cc.String())
		}
		if strings.Join(got, " ") != want || base != 0 {
			t.Errorf("rule %q: %v, default %d; want %s", rule, got, base, want)
		}
	}
}

// Running connections follow new ones, as soon as nearly all of these have another arm because the
// default does badly.
func TestRunningConnectionsFollowNewOnes(t *testing.T) {
	arms := ccs("cubic bbr")
	cubic, bbr := arms[0], arms[1]
	rule := Rule{Name: "all", Learn: &Learn{Arms: arms, SwitchRunning: true}}
	l, b, now := learn.DefaultThompson(), &learn.Belief{}, int64(1e18)
	seen := func(n int, cc tcp.CC, rate, loss float64) Decision {
		for range n {
			now += int64(time.Second)
			l.Observe(b, cc, learn.Outcome{At: now, Slice: now, Reward: math.Log(rate), Weight: 0.9,
				AtOnce: 1, Sent: 1000, Again: 1000 * loss, Loss: loss, Stretch: 0.02})
		}
		return Decide(&Input{Rule: &rule, Learner: l, Arms: arms, Default: cubic, Belief: b, Now: now})
	}
	if d := seen(30, cubic, 10e6, 0); d.Policy.SwitchFrom != 0 {
		t.Errorf("the default does well: %+v", d.Policy)
	}
	if d := seen(4, cubic, 1e6, 0.01); d.Policy.SwitchFrom != 0 {
		t.Errorf("nothing is known of the other arm: %+v", d.Policy)
	}
	d := seen(2, bbr, 8e6, 0.01)
	if p := d.Policy; p.SwitchFrom != 1<<0 || p.SwitchTo != 1 || p.Arms[1].Weight < learnedShare*One {
		t.Errorf("%+v", p)
	}
	rule.Learn.SwitchRunning = false
	if d := seen(1, bbr, 10e6, 0.01); d.Policy.SwitchFrom != 0 {
		t.Errorf("not asked for: %+v", d.Policy)
	}
}
