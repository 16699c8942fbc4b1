package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func adaptRule(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.SynRTO, tcp.SynAckRTO} }

// A path gets values by its own round-trip times, another path its own, and a path of which
// nothing is known gets none.
func TestAdaptByPath(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", adaptRule))
	near, far := ip("198.51.100.7"), ip("203.0.113.9")
	slow := func(s *tcp.Sample) { s.MinRTT, s.SRTT, s.RTTVar = 60_000, 70_000, 4000 }
	w.run(20, near, goods{cubic: 100, bbr: 100, reno: 100})
	w.run(20, far, goods{cubic: 100, bbr: 100, reno: 100}, slow)
	for _, c := range []struct {
		prefix string
		want   uint64
	}{{"198.51.100.0/24", 125}, {"203.0.113.0/24", 250}, {"192.0.2.0/24", 0}} {
		row, _ := w.sink.lookup(1, 0, ip(c.prefix[:len(c.prefix)-4]+"9"))
		got, _ := row.Policy.Params.Get(tcp.SynRTO)
		if got != c.want || row.Policy.Adapted>>tcp.SynRTO&1 == 1 != (c.want != 0) {
			t.Errorf("%s: syn_rto %d, adapted %b; want %d", c.prefix, got, row.Policy.Adapted, c.want)
		}
	}
	p := w.path("203.0.113.0/24")
	if len(p.Set) != 2 || p.Set[0].Field != "syn_rto" || p.Set[0].Value != 250 || p.Set[0].Reason != "metrics" || p.Set[0].Why == "" {
		t.Errorf("explained as %+v", p.Set)
	}
	if set, adapted := w.e.Fields(); set != 0 || adapted != 1<<tcp.SynRTO|1<<tcp.SynAckRTO {
		t.Errorf("fields %b, adapted %b", set, adapted)
	}
}

// Values that are computed do not make the rows of one rule differ in what the rule fixes:
// rows are written once, not at each decision.
func TestAdaptDoesNotRewriteRows(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", adaptRule, func(r *policy.Rule) { r.Set.Set(tcp.NoDelay, 1) }))
	slow := func(s *tcp.Sample) { s.MinRTT, s.SRTT, s.RTTVar = 60_000, 70_000, 4000 }
	g := goods{cubic: 100, bbr: 100, reno: 100}
	for range 60 {
		w.run(1, ip("198.51.100.7"), g)
		w.run(1, ip("203.0.113.9"), g, slow)
	}
	was := w.sink.writes
	for range 20 {
		w.e.markAll()
		w.now += second / 10
		w.e.Tick(w.now)
	}
	if more := w.sink.writes - was; more > 4 {
		t.Errorf("%d rows were written for no change", more)
	}
}

// What was adapted ends when the metrics are too old: the path may have changed.
func TestAdaptEndsWithOldMetrics(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", adaptRule))
	w.run(20, ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100})
	k := path.Of(1, 0, ip("198.51.100.7"), 24)
	synRTO := func() uint64 {
		row := w.sink.rows[k]
		v, _ := row.Policy.Params.Get(tcp.SynRTO)
		return v
	}
	if v := synRTO(); v != 125 {
		t.Fatalf("syn_rto %d", v)
	}
	for range 40 {
		w.now += int64(time.Minute)
		w.e.Tick(w.now)
	}
	if v := synRTO(); v != 0 {
		t.Errorf("after 40 idle minutes syn_rto is %d", v)
	}
}

// Metrics are kept across restarts, and so is what follows from them.
func TestMetricsAreStored(t *testing.T) {
	w := newWorld(t, nil)
	w.run(20, ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100})
	before := w.path("198.51.100.0/24").PathMetrics
	if before.MinRTT != 10_000 || before.Ssthresh != 80 || before.Updated.IsZero() {
		t.Errorf("metrics %+v", before)
	}
	changed, _, _ := w.e.Unsaved(100)
	next := New(options(newSink()))
	next.SetOffered(offer(reno, bbr, cubic), tcp.CC{})
	restore := func(keep func(StoredPath) bool) error {
		for _, m := range changed {
			keep(m)
		}
		return nil
	}
	if err := next.Start([]policy.Rule{learnRule("all")}, policy.Resolver{}, restore, w.now); err != nil {
		t.Fatal(err)
	}
	for _, p := range next.View(time.Unix(0, w.now)).Paths {
		if p.Prefix == "198.51.100.0/24" && p.PathMetrics == before {
			return
		}
	}
	t.Errorf("another engine has %+v", next.View(time.Unix(0, w.now)).Paths)
}

// A path that became slower gets a longer timeout at its next samples, even if they have no
// outcome, and in the middle of a slice of time.
func TestAdaptFollowsASlowerPath(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", adaptRule))
	to, g := ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100}
	w.run(30, to, g)
	small := func(s *tcp.Sample) {
		s.MinRTT, s.SRTT, s.RTTVar = 100_000, 120_000, 30_000
		s.Flags |= tcp.FlagAppLimited
		s.BytesAcked, s.DataSegsOut, s.Delivered, s.Busy = 2000, 2, 2, time.Millisecond
	}
	w.gap = second / 10
	w.run(20, to, g, small)
	row := w.sink.rows[path.Of(1, 0, to, 24)]
	if v, ok := row.Policy.Params.Get(tcp.SynRTO); ok && v < 500 {
		t.Errorf("syn_rto is still %d ms on a path of 120 ms", v)
	}
}

func windowRule(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.InitCwnd} }

// windowOf is the row of a path: the greatest initial window, and what it is a share of.
func windowOf(w *world, to string) (most uint64, row path.Entry) {
	row = w.sink.rows[path.Of(1, 0, ip(to), 24)]
	most, _ = row.Policy.Params.Get(tcp.InitCwnd)
	return most, row
}

// While connections show what the path holds, the row is written again before its window
// expires, but not with each of them. Later it is not extended.
func TestAdaptedWindowIsExtendedWhileItIsShown(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", windowRule))
	w.gap = second / 2
	g := goods{cubic: 100, bbr: 100, reno: 100}
	empty := func(s *tcp.Sample) { s.SRTT, s.RTTVar = s.MinRTT+200, 100 } // a queue
	w.run(20, ip("198.51.100.7"), g, empty)
	most, row := windowOf(w, "198.51.100.7")
	if most != 64 || row.Policy.Window == 0 || !row.Policy.CountFlows || row.Rule != "all" {
		t.Fatalf("at most %d, row %+v", most, row)
	}
	ids := map[uint32]bool{}
	for range 240 { // two minutes
		w.run(1, ip("198.51.100.7"), g, empty)
		_, row = windowOf(w, "198.51.100.7")
		ids[row.ID] = true
		if left := row.Policy.WindowExpires - w.now; left < 25*second {
			t.Fatalf("expires in %d ns, while the path is in use", left)
		}
	}
	if len(ids) > 60 { // it is also written when shares of arms change
		t.Errorf("240 connections wrote %d rows", len(ids))
	}
	small := func(s *tcp.Sample) {
		s.Ssthresh, s.Flags, s.BytesAcked, s.DataSegsOut, s.Cwnd = tcp.InfiniteSsthresh, tcp.FlagAppLimited, 2000, 2, 10
	}
	for range 140 {
		w.run(1, ip("198.51.100.7"), g, empty, small)
	}
	if most, row = windowOf(w, "198.51.100.7"); row.Policy.WindowExpires > w.now {
		t.Errorf("small connections extended the window: at most %d, expires in %d ns", most, row.Policy.WindowExpires-w.now)
	}
}

// Losses in first windows lower them at once, in the middle of a slice.
func TestAdaptedWindowFallsWithLossesInFirstWindows(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", windowRule))
	w.gap = second / 10
	g := goods{cubic: 100, bbr: 100, reno: 100}
	slowStart := func(s *tcp.Sample) {
		s.Ssthresh, s.Flags, s.Cwnd, s.Lost, s.Retrans = tcp.InfiniteSsthresh, tcp.FlagAppLimited, 200, 0, 0
		s.SRTT, s.RTTVar, s.DataSegsOut = s.MinRTT+200, 100, 100_000 // so many that the loss is a small share
	}
	w.run(30, ip("198.51.100.7"), g, slowStart)
	if most, _ := windowOf(w, "198.51.100.7"); most != 64 {
		t.Fatalf("at most %d, want 64", most)
	}
	w.run(1, ip("198.51.100.7"), g, slowStart, func(s *tcp.Sample) { s.InitCwnd, s.InitLost, s.Lost, s.Retrans = 64, 30, 30, 30 })
	if most, _ := windowOf(w, "198.51.100.7"); most != 32 {
		t.Errorf("at most %d, want 32", most)
	}
}

// policedBy changes samples as a policer of that rate (bytes/s) does, for the pacing rate that a
// row says.
func policedBy(w *world, to string, rate float64) func(*tcp.Sample) {
	return func(s *tcp.Sample) {
		row, _ := w.sink.lookup(1, 0, ip(to))
		pace, _ := row.Policy.Params.Get(tcp.MaxPacingRate)
		if s.Has(tcp.FlagHoldOut) {
			pace = 0
		}
		reached, lost := 0.75*rate, 0.03
		switch {
		case pace != 0 && float64(pace) <= rate:
			reached, lost = 0.95*float64(pace), 0
		case pace != 0:
			reached, lost = 0.95*rate, 1-rate/float64(pace)
		}
		s.BytesAcked = uint64(reached)
		s.DataSegsOut = uint32(reached / mss * (1 + lost))
		s.Lost, s.MaxPacingRate = uint32(reached/mss*lost), pace
		s.Retrans, s.LossRTT = s.Lost, s.MinRTT+s.MinRTT/50
		if row.Policy.CountFlows {
			s.Flows = 1
		}
	}
}

// A path with a policer is paced just under it after some connections, which is explained. Another
// path, and the policy of unknown paths, are not.
func TestPolicedPathIsPaced(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.MaxPacingRate} }))
	w.gap = second + second/10
	to, g := "198.51.100.7", goods{cubic: 100, bbr: 100, reno: 100}
	const rate = 6e6
	found := 0
	for n := 1; n <= 30; n++ {
		w.run(1, ip(to), g, policedBy(w, to, rate))
		if found == 0 && w.path("198.51.100.0/24").RateLimit != 0 {
			found = n
		}
	}
	w.run(20, ip("203.0.113.9"), g)
	p := w.path("198.51.100.0/24")
	if found == 0 || found > 12 || p.RateLimit < 0.9*rate || p.RateLimit > rate || !strings.HasPrefix(p.RateLimitWhy, "rate limit ") {
		t.Errorf("found after %d: %d bytes/s: %s", found, p.RateLimit, p.RateLimitWhy)
	}
	if len(p.Set) != 1 || p.Set[0].Field != "max_pacing_rate" || p.Set[0].Value != p.RateLimit || p.Set[0].Why != p.RateLimitWhy {
		t.Errorf("explained as %+v", p.Set)
	}
	for _, addr := range []string{"203.0.113.9", "192.0.2.200"} {
		if row, _ := w.sink.lookup(1, 0, ip(addr)); row.Policy.Adapted != 0 || !row.Policy.WatchLosses {
			t.Errorf("%s: %+v", addr, row.Policy)
		}
	}
	// A restart keeps it.
	changed, _, _ := w.e.Unsaved(100)
	next := New(options(newSink()))
	next.SetOffered(offer(reno, bbr, cubic), tcp.CC{})
	restore := func(keep func(StoredPath) bool) error {
		for _, m := range changed {
			keep(m)
		}
		return nil
	}
	if err := next.Start([]policy.Rule{learnRule("all", func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.MaxPacingRate} })}, policy.Resolver{}, restore, w.now); err != nil {
		t.Fatal(err)
	}
	for _, q := range next.View(time.Unix(0, w.now)).Paths {
		if q.Prefix == p.Prefix && (q.RateLimit != p.RateLimit || len(q.Set) != 1) {
			t.Errorf("after a restart: %+v, want a limit of %d", q, p.RateLimit)
		}
	}
}

// The first connections of a host are counted with those of its path: their samples do not say
// how many the host has.
func TestHostsOwnNumberOfConnections(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.InitCwnd} }))
	g := goods{cubic: 100, bbr: 100, reno: 100}
	many := func(s *tcp.Sample) { s.Flows, s.Ssthresh, s.DataSegsOut, s.DeliveryRate = 8, 80, 1000, 0 }
	w.run(5, ip("198.51.100.7"), g, many)
	w.run(1, ip("198.51.100.8"), g, many)
	if p := w.path("198.51.100.8/32"); p == nil || p.Carried != 80 {
		t.Errorf("a new host: %+v, want 80 packets carried", p)
	}
	w.run(20, ip("198.51.100.8"), g, many)
	if p := w.path("198.51.100.8/32"); p == nil || p.Carried != 640 {
		t.Errorf("a host with a count of its own: %+v, want 640 packets carried", p)
	}
}

// A path that only receives has a row of its own, with adapted values, and the arms of its rule:
// as they are now, and not as they were when the row was written.
func TestPathsThatOnlyReceiveFollowTheirRule(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.SynRTO, tcp.InitRwnd} }))
	receives := func(s *tcp.Sample) {
		s.Flags |= tcp.FlagAppLimited
		s.BytesAcked, s.DataSegsOut, s.Busy, s.BytesReceived = 200, 1, time.Millisecond, 1e6
	}
	even := goods{cubic: 100, bbr: 100, reno: 100}
	w.run(15, ip("203.0.113.9"), even, receives)
	k := path.Of(1, 0, ip("203.0.113.9"), 24)
	before, ok := w.sink.rows[k]
	if !ok || before.Policy.Adapted == 0 {
		t.Fatalf("no row with adapted values: %+v", before)
	}
	w.gap = second / 5
	for i := range 12 { // paths that learn
		w.run(60, ip(fmt.Sprintf("198.51.%d.7", i)), goods{cubic: 10, bbr: 100, reno: 10})
	}
	for range 12 {
		w.now += second
		w.e.Tick(w.now)
	}
	bbrs := func(k path.Key) uint32 { return w.sink.rows[k].Policy.Arms[1].Weight }
	if was := before.Policy.Arms[1].Weight; bbrs(path.Root(1, 0)) < policy.One*9/10 || was > policy.One/2 {
		t.Fatalf("the rule's share of bbr is %d, the path's was %d", bbrs(path.Root(1, 0)), was)
	}
	if got := bbrs(k); got < policy.One*9/10 {
		t.Errorf("its share of bbr is %d, its rule's %d", got, bbrs(path.Root(1, 0)))
	}
}

// Small connections show round-trip times, from which timeouts of the handshake follow, in the direction that the rule adapts.
func TestSmallConnectionsMakeAPathKnown(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.SynRTO} }))
	small := func(s *tcp.Sample) {
		s.Flags |= tcp.FlagAppLimited
		s.Ssthresh, s.Cwnd, s.Busy = 0, 10, time.Microsecond
	}
	accepted := func(s *tcp.Sample) { small(s); s.Flags &^= tcp.FlagOutgoing }
	even := goods{cubic: 100, bbr: 100, reno: 100}
	w.run(15, ip("198.51.100.7"), even, small)
	w.run(15, ip("203.0.113.9"), even, accepted)
	if row := w.sink.rows[path.Of(1, 0, ip("198.51.100.7"), 24)]; row.Policy.Adapted != 1<<tcp.SynRTO {
		t.Errorf("outgoing connections: %+v", row.Policy)
	}
	if row, ok := w.sink.rows[path.Of(1, 0, ip("203.0.113.9"), 24)]; ok {
		t.Errorf("incoming connections: %+v", row.Policy)
	}
}

func pacingRule(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.MaxPacingRate} }

// Connections of a path may have no state until a raised initial window, which they divide, is in use. Those that run then are
// adopted, once: after the window they are followed for a while, because it may come back.
func TestPathsWithRaisedWindowsAreFollowed(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", windowRule))
	to, even := "198.51.100.7", goods{cubic: 100, bbr: 100, reno: 100}
	want := func(when string, window, followed bool, adopts int) {
		t.Helper()
		most, row := windowOf(w, to)
		if most > 0 != window || row.Policy.FollowAll != followed || !row.Policy.CountFlows || w.sink.adopts != adopts {
			t.Errorf("%s: window %d, followed %v, counted %v, adopted %d times", when, most, row.Policy.FollowAll, row.Policy.CountFlows, w.sink.adopts)
		}
	}
	empty := func(s *tcp.Sample) { s.SRTT, s.RTTVar = s.MinRTT+200, 100 }
	filled := func(s *tcp.Sample) { s.SRTT, s.RTTVar = 3*s.MinRTT, 100 }
	w.run(20, ip(to), even, filled)
	want("before a window is raised", false, false, 0)
	w.run(60, ip(to), even, empty)
	want("with a raised window", true, true, 1)
	w.run(60, ip(to), even, filled)
	want("after it", false, true, 1)
	w.run(10, ip(to), even, empty)
	w.run(60, ip(to), even, filled)
	want("after it came back", false, true, 1)
	w.now += int64(windowMemory)
	w.run(60, ip(to), even, filled)
	want("much later", false, false, 1)
}

// A row that is to adopt connections, and that cannot be written at first, adopts them once it can.
func TestRowThatCannotBeWrittenAdoptsLater(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", windowRule))
	to, even := "198.51.100.7", goods{cubic: 100, bbr: 100, reno: 100}
	empty := func(s *tcp.Sample) { s.SRTT, s.RTTVar = s.MinRTT+200, 100 }
	w.run(1, ip(to), even, empty)
	w.sink.refuse = errors.New("no")
	w.run(30, ip(to), even, empty)
	if w.sink.adopts != 0 {
		t.Fatalf("adopted %d times before the row was written", w.sink.adopts)
	}
	w.sink.refuse = nil
	w.run(1, ip(to), even, empty)
	w.now += 2 * second
	w.e.Tick(w.now)
	if most, row := windowOf(w, to); most == 0 || !row.Policy.FollowAll || w.sink.adopts != 1 {
		t.Errorf("window %d, followed %v, adopted %d times", most, row.Policy.FollowAll, w.sink.adopts)
	}
}

// Losses are watched on all paths that are not known to be short; nobody is followed for that from its beginning.
func TestPathsWhoseLossesAreWatched(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", pacingRule))
	to, even := ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100}
	row := func() path.Policy { return w.sink.rows[path.Of(1, 0, to, 24)].Policy }
	w.run(30, to, even, func(s *tcp.Sample) { s.Connect, s.MinRTT, s.SRTT, s.RTTVar = 100*time.Microsecond, 100, 120, 10 })
	if root, _ := w.sink.lookup(1, 0, ip("192.0.2.200")); row().WatchLosses || row().CountFlows || !root.Policy.WatchLosses || root.Policy.FollowAll {
		t.Errorf("a short path: %+v; an unknown one: %+v", row(), root.Policy)
	}
	w.now += int64(21 * time.Minute) // the least round-trip time is remembered for 10 minutes, or for 20
	w.run(30, to, even)
	if !row().WatchLosses || !row().CountFlows || row().FollowAll || w.sink.adopts != 0 {
		t.Errorf("a longer path: %+v, adopted %d times", row(), w.sink.adopts)
	}
	small := func(s *tcp.Sample) {
		s.Flags |= tcp.FlagAppLimited
		s.Ssthresh, s.Cwnd, s.Busy = 0, 10, time.Microsecond
	}
	w.run(30, ip("203.0.113.9"), even, small)
	if p, ok := w.e.nodes[keyOf(1, 0, ip("203.0.113.9"), 24)]; ok {
		t.Errorf("connections without an outcome, which show no losses, made a path known: %+v", p.metrics)
	}
}

// A longer path within a short prefix, of which nothing else is known, has its losses watched.
func TestLossesOfALongerPathWithinAShortOneAreWatched(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Bits = func(netip.Addr) int { return 16 } }, learnRule("all", pacingRule))
	even := goods{cubic: 100, bbr: 100, reno: 100}
	w.run(40, ip("198.51.7.1"), even, func(s *tcp.Sample) { s.Connect, s.MinRTT, s.SRTT, s.RTTVar = 100*time.Microsecond, 100, 120, 10 })
	if row := w.sink.rows[path.Of(1, 0, ip("198.51.7.1"), 16)]; row.Policy.WatchLosses {
		t.Fatalf("a short prefix: %+v", row.Policy)
	}
	w.run(1, ip("198.51.99.1"), even)
	w.now += 2 * second
	w.e.Tick(w.now)
	if row, ok := w.sink.rows[path.Of(1, 0, ip("198.51.99.1"), 32)]; !ok || !row.Policy.WatchLosses || row.Policy.FollowAll || w.sink.adopts != 0 {
		t.Errorf("a host that is farther: row %v, %+v, adopted %d times", ok, row.Policy, w.sink.adopts)
	}
}

// A short path of which nothing is learned, because its connections only receive, has a row without watched losses, which is not
// written again and again, and loses it when it becomes longer.
func TestLossesOfAShortPathThatOnlyReceivesAreNotWatched(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", pacingRule))
	to, even := ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100}
	receives := func(s *tcp.Sample) {
		s.Flags = s.Flags&^tcp.FlagOutgoing | tcp.FlagAppLimited
		s.Ssthresh, s.Cwnd, s.Busy, s.BytesAcked, s.DataSegsOut, s.BytesReceived = 0, 10, time.Microsecond, 100, 1, 10_000_000
	}
	short := func(s *tcp.Sample) { s.Connect, s.MinRTT, s.SRTT, s.RTTVar = 100*time.Microsecond, 100, 120, 10 }
	w.run(20, to, even, short, receives)
	key := path.Of(1, 0, to, 24)
	row, ok := w.sink.rows[key]
	if n := w.e.nodes[keyOf(1, 0, to, 24)]; !ok || row.Policy.WatchLosses || n == nil || n.belief.Count != 0 {
		t.Fatalf("a short path: row %v, %+v, node %+v", ok, row.Policy, n)
	}
	w.run(50, to, even, short, receives)
	if again := w.sink.rows[key]; again.ID != row.ID {
		t.Errorf("its row was written %d times in 50 connections", again.ID-row.ID)
	}
	w.now += int64(21 * time.Minute)
	w.run(30, to, even, receives)
	w.now += 2 * second
	w.e.Tick(w.now)
	if row, ok := w.sink.rows[key]; ok && !row.Policy.WatchLosses {
		t.Errorf("a longer path: %+v", row.Policy)
	}
}

// Connections that begin together on a path of which nothing is known are not counted. The first one that loses packets makes
// the path count them, so that the search does not begin at the rate of one of them.
func TestPolicerOfConnectionsThatBeginTogether(t *testing.T) {
	const rate, together = 30e6, 5
	w := newWorld(t, nil, learnRule("all", pacingRule))
	w.gap = second + second/10
	to, g := "198.51.100.7", goods{cubic: 100, bbr: 100, reno: 100}
	share := func(s *tcp.Sample) {
		policedBy(w, to, rate)(s)
		s.BytesAcked, s.DataSegsOut, s.Lost, s.Retrans = s.BytesAcked/together, s.DataSegsOut/together, s.Lost/together, s.Retrans/together
		s.MaxPacingRate /= together
		s.Flows *= together
	}
	uncounted := func(s *tcp.Sample) { share(s); s.Flows = 0 }
	w.run(together, ip(to), g, uncounted)
	for range 40 {
		w.run(1, ip(to), g, share)
		if row := w.sink.rows[path.Of(1, 0, ip(to), 24)].Policy; row.Adapted&(1<<tcp.MaxPacingRate) != 0 {
			if pace, _ := row.Params.Get(tcp.MaxPacingRate); float64(pace) < 0.7*rate {
				t.Errorf("a path of %.0f bytes/s is paced at %d", float64(rate), pace)
			}
		}
	}
	if p := w.path("198.51.100.0/24"); p.RateLimit < 0.9*rate || p.RateLimit > rate {
		t.Errorf("%d bytes/s: %s", p.RateLimit, p.RateLimitWhy)
	}
}

// The search does not go below the rule's bound. It finds a limit above it, although connections without pacing are slower, and ends
// if the limit is below it. Also if losses are all that connections show.
func TestPolicerNearTheBoundOfTheRule(t *testing.T) {
	const rate = 30e6
	to, g := "198.51.100.7", goods{cubic: 100, bbr: 100, reno: 100}
	for _, bound := range []uint64{0.9 * rate, 1.1 * rate} {
		for _, forLosses := range []bool{false, true} {
			w := newWorld(t, nil, learnRule("all", pacingRule, func(r *policy.Rule) { r.Bounds.Set(tcp.MaxPacingRate, bound) }))
			w.gap = second + second/10
			adopted := func(s *tcp.Sample) {
				if forLosses && s.MaxPacingRate == 0 {
					s.Flags, s.Arm, s.Class = tcp.FlagAdopted, tcp.CC{}, 1
				}
			}
			w.run(1, ip(to), g, policedBy(w, to, rate), adopted)
			w.now += 2 * second
			w.e.Tick(w.now)
			for range 40 {
				w.run(1, ip(to), g, policedBy(w, to, rate), adopted)
				if p := &w.e.nodes[keyOf(1, 0, ip(to), 24)].metrics.Policer; p.Pace != 0 && uint64(p.Pace) < bound {
					t.Fatalf("bound %d, followed for losses %v: %+v", bound, forLosses, *p)
				}
			}
			p := &w.e.nodes[keyOf(1, 0, ip(to), 24)].metrics.Policer
			if limit, _ := p.Limit(); bound < rate && uint64(limit) < bound || bound > rate && (p.State == estimate.PolicerFound || p.Retry == 0) {
				t.Errorf("bound %d, followed for losses %v: %+v", bound, forLosses, *p)
			}
		}
	}
}

// Of a busy host's connections, those that are followed since they lose packets find the path's policer; nothing else follows
// from them. The first one makes the path count how many they are.
func TestPolicerOfConnectionsFollowedForTheirLosses(t *testing.T) {
	for _, together := range []uint32{1, 5} {
		w := newWorld(t, nil, learnRule("all", pacingRule))
		w.gap = second + second/10
		to, g := "198.51.100.7", goods{cubic: 100, bbr: 100, reno: 100}
		const rate = 30e6
		counted := func() bool { return w.sink.rows[path.Of(1, 0, ip(to), 24)].Policy.CountFlows }
		lossy := func(s *tcp.Sample) {
			policedBy(w, to, rate)(s)
			s.BytesAcked, s.DataSegsOut, s.Lost, s.Retrans = s.BytesAcked/uint64(together), s.DataSegsOut/together, s.Lost/together, s.Retrans/together
			s.MaxPacingRate /= uint64(together)
			if counted() {
				s.Flows = together
			}
			if s.MaxPacingRate == 0 { // the others have state from their beginning
				s.Flags, s.Arm, s.Class = tcp.FlagAdopted, tcp.CC{}, 1
			}
		}
		w.run(1, ip(to), g, lossy)
		w.now += 2 * second
		w.e.Tick(w.now)
		if !counted() {
			t.Errorf("%d together: the path's connections are not counted", together)
		}
		w.run(3, ip(to), g, lossy)
		if p := w.path("198.51.100.0/24"); p.Samples != 0 || w.e.nodes[keyOf(1, 0, ip(to), 24)].metrics.Policer.State != estimate.PolicerSuspected {
			t.Errorf("%d together: after four connections: %+v", together, p)
		}
		w.run(30, ip(to), g, lossy)
		if p := w.path("198.51.100.0/24"); p.RateLimit < 0.9*rate || p.RateLimit > rate {
			t.Errorf("%d together: %d bytes/s: %s", together, p.RateLimit, p.RateLimitWhy)
		}
		if n := w.e.ignored[learn.Adopted]; n < 4 {
			t.Errorf("%d samples without an outcome for that reason", n)
		}
	}
}

// Windows come and go with the load of a path, so that hold-out slices count for the default only if none was ever raised.
func TestHoldOutSlicesWhereWindowsWereRaised(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", windowRule))
	to, even := ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100}
	w.run(20, to, even)
	n := w.e.nodes[keyOf(w.e.rules.states[0].root.key.class, 0, to, 24)]
	if n.changesTransfers() {
		t.Error("before a window was raised")
	}
	w.run(1, to, even, func(s *tcp.Sample) { s.InitCwnd = 20 })
	if !n.changesTransfers() {
		t.Error("after a window was raised")
	}
}
