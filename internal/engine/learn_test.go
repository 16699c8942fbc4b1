package engine

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

var (
	lossy = goods{cubic: 20, bbr: 160, reno: 22}
	clean = goods{cubic: 900, bbr: 500, reno: 800}
)

func TestOnePathConverges(t *testing.T) {
	w := newWorld(t, nil)
	starts := w.run(40, ip("203.0.113.9"), lossy)
	if n := count(starts[20:], bbr); n < 18 {
		t.Errorf("%d of the last 20 connections started with bbr, want 18 or more: %v", n, starts[20:])
	}
	p := w.path("203.0.113.0/24")
	if p.Reason != policy.Learned.String() || p.arm(bbr).Weight < 0.9 {
		t.Errorf("reason %s, bbr's share %.2f", p.Reason, p.arm(bbr).Weight)
	}
	if p.arm(bbr).Greedy == 0 || p.arm(bbr).Greedy > p.arm(bbr).Count {
		t.Errorf("%d of %d greedy", p.arm(bbr).Greedy, p.arm(bbr).Count)
	}
}

// The engine adapts to a path that changes, also if decisions are rare: if many connections
// share a slice, it takes the same number of slices.
func TestChangedPathIsFollowed(t *testing.T) {
	for gap, within := range map[int64]int{second: 15, second / 200: 15 * 200 / 15} {
		w := newWorld(t, nil)
		w.gap = gap
		to, brief := ip("203.0.113.9"), func(s *tcp.Sample) { s.Duration = time.Duration(gap) }
		w.run(4*within, to, goods{cubic: 300, bbr: 160, reno: 250}, brief)
		w.run(within, to, lossy, brief)
		if starts := w.run(2*within, to, lossy, brief); count(starts, bbr) < within*3/2 {
			t.Errorf("gap %v: after %d connections on the changed path %d of %d start with bbr",
				time.Duration(gap), within, count(starts, bbr), len(starts))
		}
	}
}

// bpftune keeps one choice for both, so that a clean host gets that of a lossy host behind
// the same gateway.
func TestHostsOfOnePathLearnForThemselves(t *testing.T) {
	w := newWorld(t, nil)
	bad, good := ip("203.0.113.9"), ip("203.0.113.10")
	w.run(40, bad, lossy)
	var last []tcp.CC
	for range 40 {
		last = append(last, w.run(1, good, clean)...)
		w.run(1, bad, lossy)
	}
	if n := count(last[20:], bbr); n > 2 {
		t.Errorf("the clean host started %d of 20 with the lossy one's arm", n)
	}
	if got := w.run(20, bad, lossy); count(got, bbr) < 18 {
		t.Errorf("the lossy host started %d of 20 with bbr", count(got, bbr))
	}
	if p := w.path("203.0.113.9/32"); p.arm(bbr).Count < 40 {
		t.Errorf("the first host has %d outcomes: what the path had learned was not handed on", p.arm(bbr).Count)
	}
}

// In bpftune, a congestion control that the kernel does not have stalls learning.
func TestMissingArmDoesNotStall(t *testing.T) {
	w := newWorld(t, nil, learnRule("r", func(r *policy.Rule) { r.Learn.Arms = []tcp.CC{cc("htcp"), cubic, bbr, dctcp} }))
	w.e.ArmMissing(cc("htcp"), "no module")
	starts := w.run(40, ip("203.0.113.9"), lossy)
	if n := count(starts[20:], bbr); n < 18 {
		t.Errorf("%d of the last 20 with bbr", n)
	}
	for _, a := range w.path("203.0.113.0/24").Arms {
		if a.CC == cc("htcp") || a.CC == dctcp {
			t.Errorf("%s is an arm", a.CC)
		}
	}
	arms := w.e.View(time.Unix(0, w.now)).Arms
	if arms.Missing[cc("htcp")] != "no module" || !slices.Contains(arms.Active, bbr) {
		t.Errorf("arms: %v", arms)
	}
}

func TestArmThatFailsIsRetiredAndNeverScored(t *testing.T) {
	w := newWorld(t, nil)
	to := ip("203.0.113.9")
	failed := func(s *tcp.Sample) {
		if s.Arm == bbr {
			s.Flags |= tcp.FlagArmFailed
			s.CC = cubic
		}
	}
	w.run(6, to, lossy, failed)
	w.e.ArmFailedBefore(bbr, 3)
	w.e.ArmFailed(bbr, 3)
	if s := w.e.View(time.Unix(0, w.now)).Arms; !slices.Contains(s.Active, bbr) || s.Failures[bbr] != 3 {
		t.Fatalf("failures of an earlier process retired it: %+v", s)
	}
	w.e.ArmFailed(bbr, 4)
	w.e.Tick(w.now)
	if got := w.run(60, to, lossy, failed); count(got, bbr) != 0 {
		t.Errorf("a retired arm was given to %d connections", count(got, bbr))
	}
	if a := w.path("203.0.113.0/24").arm(bbr); a.Count != 0 {
		t.Errorf("a refused arm was scored %d times", a.Count)
	}
	for _, c := range w.sink.rows {
		for _, a := range c.Policy.Arms[:c.Policy.NumArms] {
			if a.CC == bbr {
				t.Errorf("row %v still has bbr", c.Key)
			}
		}
	}
	w.e.SetOffered(offer(reno, bbr, cubic), tcp.CC{})
	w.e.Tick(w.now)
	if got := w.run(5, to, lossy); count(got, bbr) != 0 {
		t.Error("the same list of congestion controls, and it is back")
	}
	w.e.SetOffered(offer(bbr, cubic), tcp.CC{}) // a module was unloaded: the list changed
	if got := w.run(40, to, lossy); count(got, bbr) == 0 {
		t.Error("the kernel's list changed, and it did not get another chance")
	}
	w.e.ArmFailed(bbr, 4)
	if got := w.run(10, to, lossy); count(got, bbr) == 0 {
		t.Error("an old failure retired it again")
	}
}

func TestECNOnlyArms(t *testing.T) {
	w := newWorld(t, nil)
	w.e.SetOffered(offer(cubic, dctcp), tcp.CC{})
	g := goods{cubic: 100, dctcp: 300}
	to := ip("10.0.113.9")
	if got := w.run(30, to, g); count(got, dctcp) != 0 {
		t.Error("dctcp was tried on a path without marks")
	}
	marks := func(s *tcp.Sample) { s.Flags |= tcp.FlagECN; s.DeliveredCE = 5 }
	w.run(provenMarks, to, g, marks)
	if got := w.run(40, to, g); count(got[20:], dctcp) < 15 {
		t.Errorf("dctcp started %d of the last 20 on a path with marks", count(got[20:], dctcp))
	}
	if got := w.run(10, ip("198.51.100.1"), g); count(got, dctcp) != 0 {
		t.Error("dctcp was tried on another path")
	}
}

// An arm that ignores marks would take from those that answer them, until all connections
// have it.
func TestArmsThatIgnoreMarks(t *testing.T) {
	w := newWorld(t, nil)
	w.e.SetOffered([]congestion.Control{congestion.Of(cubic), congestion.Of(bbr), congestion.Of(dctcp)}, tcp.CC{})
	g := goods{cubic: 100, bbr: 300, dctcp: 110}
	to := ip("10.0.113.9")
	if got := w.run(40, to, g); count(got[20:], bbr) < 15 {
		t.Errorf("bbr started %d of the last 20 on a path without marks", count(got[20:], bbr))
	}
	marks := func(s *tcp.Sample) { s.Flags |= tcp.FlagECN; s.DeliveredCE = 5 }
	w.run(provenMarks, to, g, marks)
	if got := w.run(20, to, g); count(got, bbr) != 0 {
		t.Errorf("bbr started %d of 20 on a path with marks", count(got, bbr))
	}
	if got := w.run(20, ip("198.51.100.1"), g); count(got, bbr) == 0 {
		t.Error("bbr is gone from another path")
	}
}

// bpftune scores every connection that ends by FIN, and none that ends by RST.
func TestWhatIsScored(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*tcp.Sample)
		why    string // empty: scored
	}{
		{"fin", func(*tcp.Sample) {}, ""},
		{"reset", func(s *tcp.Sample) { s.End = tcp.EndReset }, ""},
		{"timeout", func(s *tcp.Sample) { s.End = tcp.EndTimeout }, ""},
		{"live", func(s *tcp.Sample) { s.Kind, s.End = tcp.KindInterval, tcp.EndNone }, ""},
		{"slow link", func(s *tcp.Sample) { s.BytesAcked, s.DataSegsOut = 60_000, 42 }, ""},
		{"receiver", func(s *tcp.Sample) { s.RwndLtd = s.Busy }, "receiver-limited"},
		{"application", func(s *tcp.Sample) { s.Flags |= tcp.FlagAppLimited; s.Busy = s.Duration / 20; s.BytesAcked /= 20 }, "app-limited"},
		{"tiny", func(s *tcp.Sample) { s.BytesAcked, s.DataSegsOut, s.Busy = 4000, 3, time.Millisecond }, "too-small"},
		{"own choice", func(s *tcp.Sample) { s.Flags |= tcp.FlagAppCC }, "app-cc"},
		{"older", func(s *tcp.Sample) { s.Flags |= tcp.FlagAdopted }, "adopted"},
		{"changed", func(s *tcp.Sample) { s.Flags |= tcp.FlagCCChanged }, "cc-changed"},
		{"no arm", func(s *tcp.Sample) { s.Arm = tcp.CC{} }, "no-arm"},
		{"failed", func(s *tcp.Sample) { s.Kind, s.End = tcp.KindFailedConnect, tcp.EndRefused }, "failed-connect"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, nil)
			s := w.connect(ip("203.0.113.9"), lossy)
			s.Flags &^= tcp.FlagHoldOut
			tc.change(s)
			w.e.Observe(s)
			total := w.e.View(time.Unix(0, w.now)).Totals
			if scored := total.ObserveCount == 1; scored != (tc.why == "") || tc.why != "" && total.Ignored[tc.why] != 1 {
				t.Errorf("scored %d, ignored %v; want %q", total.ObserveCount, total.Ignored, tc.why)
			}
		})
	}
}

// The host's default is used until another arm is shown to be better, and for the hold-out.
func TestTheDefaultIsKeptUntilAnotherIsShownToBeBetter(t *testing.T) {
	for _, c := range []struct {
		name string
		def  tcp.CC
		g    goods
		want tcp.CC
	}{
		{"alike", bbr, goods{cubic: 100, bbr: 100, reno: 100}, bbr},
		{"much better", cubic, goods{cubic: 20, bbr: 100, reno: 20}, bbr},
		{"worse", cubic, goods{cubic: 100, bbr: 80, reno: 60}, cubic},
	} {
		w := newWorld(t, nil)
		w.e.SetOffered(offer(cubic, bbr, reno), c.def)
		w.e.Settle(w.now)
		got := w.run(200, ip("203.0.113.9"), c.g)
		if n := count(got[:100], c.def) + count(got[:100], c.want); n < 60 {
			t.Errorf("%s: %d of the first 100 connections began with another arm than %v and %v", c.name, 100-n, c.def, c.want)
		}
		if n := count(got[100:], c.want); n < 80 {
			t.Errorf("%s: %d of the last 100 connections began with %v", c.name, n, c.want)
		}
		p := w.path("203.0.113.0/24")
		if a := p.arm(c.def); !a.Default {
			t.Errorf("%s: %+v is not shown as the default", c.name, a)
		}
		if row, _ := w.sink.lookup(w.sink.table.Classes[0].ID, 0, ip("203.0.113.9")); !row.Policy.Arms[0].Default {
			t.Errorf("%s: the first arm is %+v", c.name, row.Policy.Arms[0])
		}
	}
}

// The default is an arm even if the rule does not name it, or another arm replaces it in
// arms: auto.
func TestTheDefaultIsAlwaysAnArm(t *testing.T) {
	bbr3 := cc("tcpilot_bbr3")
	for _, arms := range [][]tcp.CC{nil, {cubic, reno}} {
		w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Learn.Arms = arms }))
		w.e.SetOffered(offer(cubic, reno, bbr, bbr3), bbr)
		w.e.Settle(w.now)
		row, _ := w.sink.lookup(w.sink.table.Classes[0].ID, 0, ip("203.0.113.9"))
		if a := row.Policy.Arms[0]; a.CC != bbr || !a.Default {
			t.Errorf("arms %v: the first is %+v", arms, a)
		}
	}
}

// A path on which treated connections do worse is left to the default, reports that, and is
// tuned again later.
func TestWorseThanDefaultIsLeftToIt(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} },
		learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut = 0.1 }))
	w.e.SetOffered(offer(cubic, bbr, reno), cubic)
	w.e.Settle(w.now)
	g := goods{cubic: 100, bbr: 50, reno: 50}
	to := ip("203.0.113.9")
	w.run(300, to, g)
	p := w.path("203.0.113.0/24")
	if p.LeftToDefault == nil || p.Reason != policy.WorseThanDefault.String() || p.LeftToDefault.Why == "" {
		t.Fatalf("%s, %+v", p.Reason, p.LeftToDefault)
	}
	if got := w.run(50, to, g); count(got, cubic) != 50 {
		t.Errorf("%d of 50 connections have the default", count(got, cubic))
	}
	w.now = p.LeftToDefault.Until.UnixNano() + 1
	w.e.Settle(w.now)
	w.now += int64(6 * time.Minute) // policies are renewed
	w.e.Tick(w.now)
	if got := w.run(50, to, g); count(got, cubic) == 50 {
		t.Error("it is never tuned again")
	}
}

// harmed has connections for d on a path on which the default is twice as fast as other arms, and on paths beside it
// on which all are alike. It returns for how long the path was left to the default, each time.
func harmed(t *testing.T, d time.Duration, beside ...netip.Addr) (lengths []time.Duration) {
	w := newWorld(t, func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} },
		learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut = 0.1 }))
	w.e.SetOffered(offer(cubic, bbr, reno), cubic)
	w.e.Settle(w.now)
	var last time.Time
	for end := w.now + int64(d); w.now < end; {
		for _, other := range beside {
			w.run(1, other, allAlike)
		}
		w.run(1, ip("203.0.113.9"), goods{cubic: 100, bbr: 50, reno: 50})
		if left := w.path("203.0.113.0/24").LeftToDefault; left != nil && !left.Since.Equal(last) {
			lengths, last = append(lengths, left.Until.Sub(left.Since)), left.Since
		}
	}
	return lengths
}

// A path on which tuning does harm again and again is left to the default for longer and longer.
func TestHarmBacksOff(t *testing.T) {
	lengths := harmed(t, 5*time.Hour, nth(1), nth(2)) // the other paths have no harm, so the rule has none
	if n := len(lengths); n < 3 || n > 8 || lengths[0] != 10*time.Minute || lengths[n-1] < 80*time.Minute {
		t.Errorf("left to the default for %v, want longer each time", lengths)
	}
}

// That is so too if it is the only path of its rule, which is left to the default for the same harm.
func TestHarmBacksOffOnASinglePath(t *testing.T) {
	if times := len(harmed(t, 6*time.Hour)); times < 3 || times > 12 {
		t.Errorf("left to the default %d times within 6 hours of harm", times)
	}
}

// Comparing after every outcome must not find harm if there is none.
func TestTheDefaultGuardSeldomErrs(t *testing.T) {
	wrong := 0
	for seed := range uint64(200) {
		w := newWorld(t, func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} },
			learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut = 0.1 }))
		w.rng = rand.New(rand.NewPCG(seed, 7))
		w.e.SetOffered(offer(cubic, bbr, reno), cubic)
		w.e.Settle(w.now)
		w.run(1000, ip("203.0.113.9"), goods{cubic: 100, bbr: 100, reno: 100})
		if w.e.View(time.Unix(0, w.now)).Totals.Retired[guard.WorseThanDefault.String()] > 0 {
			wrong++
		}
	}
	if wrong > 10 { // 5 % of 200; the boundary is wider than necessary
		t.Errorf("%d of 200 paths that tcpilot does no harm to were left to the default", wrong)
	}
}

// The first trials of bad arms are the cost of finding a good one: a new path is not left to
// the default because of them.
func TestTheDefaultGuardAllowsFirstTrials(t *testing.T) {
	left := 0
	const bad = 0.2
	for seed := range uint64(100) {
		w := newWorld(t, nil)
		w.rng = rand.New(rand.NewPCG(seed, 9))
		w.e.SetOffered(offer(cubic, bbr, reno, cc("vegas"), cc("illinois"), cc("scalable")), cubic)
		w.e.Settle(w.now)
		w.run(60, ip("203.0.113.9"), goods{cubic: 20, bbr: 60, reno: bad, cc("vegas"): bad, cc("illinois"): bad, cc("scalable"): bad})
		if w.e.View(time.Unix(0, w.now)).Totals.Retired[guard.WorseThanDefault.String()] > 0 {
			left++
		}
	}
	if left > 1 {
		t.Errorf("%d of 100 paths on which an arm is three times better were left to the default", left)
	}
}

// Evidence of one path does not decide for another. A path with random loss finds the arm
// that tolerates it, even if that arm was bad on a neighbouring path and a noisy host hides
// that the queue is short.
func TestOnePathDoesNotDecideForAnother(t *testing.T) {
	good, bad := goods{cubic: 30, bbr: 12, reno: 30}, goods{cubic: 4, bbr: 40, reno: 4}
	for seed := range uint64(50) {
		w := newWorld(t, nil)
		w.rng = rand.New(rand.NewPCG(seed, 9))
		w.now += int64(seed) * 17 * second // the draw of a slice depends on the time
		w.gap = 360 * int64(time.Millisecond)
		w.e.SetOffered(offer(cubic, bbr, reno), cubic)
		w.e.Settle(w.now)
		short := func(s *tcp.Sample) {
			s.Duration, s.Busy = 350*time.Millisecond, 300*time.Millisecond
			s.SRTT = s.MinRTT * 5 / 4
		}
		loses := func(s *tcp.Sample) { s.Retrans = s.DataSegsOut / 20 }
		var starts []tcp.CC
		for range 10 {
			w.run(1, ip("10.77.2.2"), good, short)
			starts = append(starts, w.run(1, ip("10.77.1.2"), bad, short, loses)...)
		}
		starts = append(starts, w.run(40, ip("10.77.1.2"), bad, short, loses)...)
		if n := count(starts[40:], bbr); n < 7 {
			t.Errorf("seed %d: of 10 connections after 40 others %d have bbr: %v", seed, n, starts)
		}
	}
}

func TestHoldOutShowsTheGain(t *testing.T) {
	w := newWorld(t, nil, learnRule("r", func(r *policy.Rule) { r.Learn.HoldOut = 0.2 }))
	w.run(300, ip("203.0.113.9"), lossy)
	h := w.path("203.0.113.0/24").HoldOut
	if h.Share < 0.17 || h.Share > 0.201 || h.Count < 30 || h.Count > 90 {
		t.Errorf("share %v, %d of 300 held out, want about 60", h.Share, h.Count)
	}
	// 8 times is bbr's 160 over cubic's 20 Mbit/s; not all of those treated have bbr.
	if g := h.Gain; !g.Better() || g.Ratio < 2.5 || g.Ratio > 9 {
		t.Errorf("gain %+v, want more than 2.5", g)
	}
}

// IPv4 addresses and their v4-mapped form belong to the same path.
func TestMappedAddresses(t *testing.T) {
	w := newWorld(t, nil)
	for _, a := range []string{"203.0.113.9", "::ffff:203.0.113.9", "2001:db8:1:2::3", "2001:db8:1:ffff::4"} {
		s := w.connect(ip(a), lossy)
		w.e.Observe(s)
	}
	got := map[string]uint64{}
	for _, p := range w.e.View(time.Unix(0, w.now)).Paths {
		got[p.Prefix] = p.Samples
	}
	if got["203.0.113.0/24"] != 2 || got["2001:db8:1::/48"] != 2 {
		t.Errorf("paths %v", got)
	}
}

func TestUnattributed(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.FirstClass = 40 })
	s := w.connect(ip("203.0.113.9"), lossy)
	if s.Class != 40 {
		t.Fatalf("class %d, want 40: ids below may be in use by connections of an earlier process", s.Class)
	}
	for _, class := range []uint32{0, 39, 41} {
		s.Class = class
		w.e.Observe(s)
	}
	if snap := w.e.View(time.Unix(0, w.now)); snap.Totals.Unattributed != 3 || len(snap.Paths) != 0 || snap.Totals.Samples["close"] != 3 {
		t.Errorf("%+v", snap.Totals)
	}
}

// A scan of addresses that never answer must not evict learned paths.
func TestFailedConnectsMakeNoPath(t *testing.T) {
	w := newWorld(t, nil)
	s := w.connect(ip("203.0.113.9"), lossy)
	s.Kind, s.End = tcp.KindFailedConnect, tcp.EndTimeout
	w.e.Observe(s)
	if snap := w.e.View(time.Unix(0, w.now)); len(snap.Paths) != 0 || snap.Totals.Ignored["failed-connect"] != 1 {
		t.Errorf("%d paths, %v", len(snap.Paths), snap.Totals.Ignored)
	}
}

func TestOwnScope(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limit = 4 }, learnRule("r", func(r *policy.Rule) { r.Learn.OwnScope = true }))
	to := ip("203.0.113.9")
	in := func(ns uint64) func(*tcp.Sample) { return func(s *tcp.Sample) { s.NetNS = ns } }
	w.run(40, to, lossy, in(7))
	if got := w.run(40, to, clean, in(8)); count(got[20:], bbr) > 3 {
		t.Error("a namespace follows another's learning")
	}
	if got := w.run(20, to, lossy, in(7)); count(got, bbr) < 17 {
		t.Errorf("the first namespace forgot: %v", got)
	}
	for ns := range uint64(50) { // namespaces come and go
		w.run(2, to, clean, in(100+ns))
	}
	if n := w.e.cache.byUse.len; n > 4 {
		t.Errorf("%d nodes: the roots of namespaces that are gone stay for ever", n)
	}
	if len(w.sink.rows) > 6 {
		t.Errorf("%d rows in the kernel", len(w.sink.rows))
	}
}

func TestEpsilonGreedyRuns(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Learner = learn.NewEpsilonGreedy(learn.PublishedEpsilon, learn.PublishedRate) })
	if got := w.run(60, ip("203.0.113.9"), lossy); count(got[30:], bbr) < 20 {
		t.Errorf("bbr %d of 30", count(got[30:], bbr))
	}
}
