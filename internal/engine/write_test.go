package engine

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

var errRefused = errors.New("refused")

func TestUnchangedDecisionsAreNotWritten(t *testing.T) {
	w := newWorld(t, nil)
	w.run(60, ip("203.0.113.9"), lossy)
	w.e.Settle(w.now)
	writes, calls := w.sink.writes, w.sink.calls
	for range 10 {
		w.e.Tick(w.now)
	}
	w.e.mu.Lock()
	w.e.markAll()
	w.e.mu.Unlock()
	w.e.Tick(w.now)
	if w.sink.writes != writes || w.sink.calls != calls {
		t.Errorf("%d rows in %d calls were written though nothing changed", w.sink.writes-writes, w.sink.calls-calls)
	}
	s := w.sample(ip("203.0.113.9"))
	s.Class = w.e.rules.states[0].class // no arm: nothing is learned from it
	w.e.Observe(s)
	w.e.Tick(w.now)
	if w.sink.writes != writes {
		t.Error("a sample that taught nothing was followed by a write")
	}
}

func TestRenewal(t *testing.T) {
	const ttl = 10 * time.Second
	w := newWorld(t, func(o *Options) { o.TTL = ttl })
	w.run(5, ip("203.0.113.9"), lossy)
	for i := range 16_000 { // a full table under the shortest TTL
		s := w.connectAny()
		s.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}), 443)
		w.e.Observe(s)
	}
	w.e.Settle(w.now)
	for range 60 {
		w.now += second
		w.e.Tick(w.now)
		for _, row := range w.sink.rows {
			if row.Expires <= w.now+second {
				t.Fatalf("%v expires before the next tick", row.Key)
			}
		}
	}
	w.sink.writes = 0
	w.e.Tick(w.now + 1)
	if w.sink.writes > len(w.sink.rows)/2 {
		t.Errorf("%d of %d rows were renewed at once", w.sink.writes, len(w.sink.rows))
	}
}

// The kernel uses another clock: rows must not expire there when the wall clock is set back.
func TestRenewalWhenTheClockIsSetBack(t *testing.T) {
	w := newWorld(t, nil)
	w.run(5, ip("203.0.113.9"), lossy)
	w.now -= 3600 * second
	w.sink.writes = 0
	w.e.Tick(w.now)
	for k, row := range w.sink.rows {
		if row.Expires > w.now+int64(defaultTTL) {
			t.Errorf("%v was not renewed", k)
		}
	}
	if w.sink.writes == 0 {
		t.Error("nothing was written")
	}
}

func TestRefusedWritesAreTriedAgain(t *testing.T) {
	w := newWorld(t, nil)
	w.sink.refuse = errRefused
	w.run(3, ip("203.0.113.9"), lossy)
	calls := w.sink.calls
	for range 50 {
		w.e.Tick(w.now)
	}
	if w.sink.calls != calls {
		t.Errorf("%d calls within the pause", w.sink.calls-calls)
	}
	if total := w.e.View(time.Unix(0, w.now)).Totals; total.WriteErrors == 0 {
		t.Error("not counted")
	}
	w.sink.refuse = nil
	w.now += second
	w.e.Tick(w.now)
	k := path.Of(1, 0, ip("203.0.113.0"), 24)
	if _, ok := w.sink.rows[k]; !ok {
		t.Fatalf("not written again: %v", w.sink.rows)
	}
	// A row whose second write failed may be in the kernel: it is deleted with its path.
	w.sink.refuse = errRefused
	w.e.SetOffered(offer(cubic, bbr), tcp.CC{})
	w.e.Settle(w.now)
	w.e.mu.Lock()
	w.e.cache.limit = 0
	w.e.evict(w.now)
	w.e.mu.Unlock()
	w.sink.refuse = nil
	w.e.Settle(w.now)
	if _, ok := w.sink.rows[k]; ok {
		t.Error("the row outlived its path")
	}
}

func TestEvictionDeletesRows(t *testing.T) {
	const limit = 64
	w := newWorld(t, func(o *Options) { o.Limit = limit })
	host := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i / 2), byte(1 + i%2)}) }
	for i := range 400 {
		w.run(2, host(i), lossy)
		w.run(1, host(0), lossy) // in use all the time
		snap := w.e.View(time.Unix(0, w.now))
		if snap.Totals.Paths > limit {
			t.Fatalf("%d paths", snap.Totals.Paths)
		}
		if len(w.sink.rows) > limit+1 {
			t.Fatalf("%d rows in the kernel", len(w.sink.rows))
		}
		for _, n := range w.e.nodes {
			if n.parent != nil && n.parent.gone {
				t.Fatalf("%v was evicted before its host %v", n.parent.key.path(), n.key.path())
			}
		}
	}
	if w.e.View(time.Unix(0, w.now)).Totals.Evicted == 0 {
		t.Error("nothing was evicted")
	}
	if p := w.path("10.0.0.1/32"); p.Samples < 400 {
		t.Errorf("the host in use has %d samples", p.Samples)
	}
}

// A path that is evicted and created again before the next tick keeps its new row.
func TestEvictedAndCreatedAgain(t *testing.T) {
	w := newWorld(t, nil)
	to := ip("203.0.113.9")
	w.run(3, to, lossy)
	w.e.mu.Lock()
	limit := w.e.cache.limit
	w.e.cache.limit = 0
	w.e.evict(w.now)
	w.e.cache.limit = limit
	w.e.mu.Unlock()
	w.run(1, to, lossy)
	w.e.Settle(w.now)
	if _, ok := w.sink.rows[path.Of(1, 0, to, 24)]; !ok || w.path("203.0.113.0/24").Samples != 1 {
		t.Errorf("rows %v", w.sink.rows)
	}
}

// If a set of rules is refused, no part of it is in force.
func TestRefusedRules(t *testing.T) {
	set := func(v uint64) policy.Rule {
		r := policy.Rule{Name: "set"}
		r.Set.Set(0, v)
		return r
	}
	w := newWorld(t, nil, set(10), learnRule("learn"))
	rows := len(w.sink.rows)
	for _, fail := range []func(error){
		func(err error) { w.sink.noRules = err },
		func(err error) { w.sink.refuse = err },
	} {
		fail(errRefused)
		err := w.e.SetRules([]policy.Rule{set(20), learnRule("another"), learnRule("learn")}, policy.Resolver{}, w.now)
		if !errors.Is(err, errRefused) {
			t.Fatalf("error %v", err)
		}
		fail(nil)
		w.now += 2 * second
		w.e.Tick(w.now)
		if len(w.sink.rows) != rows || len(w.e.Rules()) != 2 {
			t.Errorf("%d rows, %d rules; before %d and 2", len(w.sink.rows), len(w.e.Rules()), rows)
		}
		if v, _ := func() (uint64, bool) { p := w.sink.rows[path.Root(1, 0)].Policy.Params; return p.Get(0) }(); v != 10 {
			t.Errorf("the first rule sets %d, want the old 10", v)
		}
	}
	if err := w.e.SetRules([]policy.Rule{set(20)}, policy.Resolver{}, w.now); err != nil {
		t.Fatal(err)
	}
	p := w.sink.rows[path.Root(w.sink.table.Classes[0].ID, 0)].Policy.Params
	if v, _ := p.Get(0); v != 20 || len(w.sink.rows) != 1 {
		t.Errorf("value %d, rows %v", v, w.sink.rows)
	}
}

// A class is never in force before its policy is in the kernel.
func TestPoliciesBeforeRules(t *testing.T) {
	w := newWorld(t, nil)
	w.sink.log = nil
	if err := w.e.SetRules([]policy.Rule{learnRule("other")}, policy.Resolver{}, w.now); err != nil {
		t.Fatal(err)
	}
	if len(w.sink.log) < 3 || w.sink.log[1] != "rules 1" || w.sink.log[0][:5] != "write" || w.sink.log[len(w.sink.log)-1] != "delete class 1 ::/0" {
		t.Errorf("%q", w.sink.log)
	}
}

func TestReload(t *testing.T) {
	w := newWorld(t, nil, learnRule("a"))
	to := ip("203.0.113.9")
	w.run(40, to, lossy)
	late := w.connect(to, lossy)
	reload := func(r policy.Rule) {
		t.Helper()
		if err := w.e.SetRules([]policy.Rule{{Name: "lo", Leave: true, Match: policy.Match{Remote: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}, r}, policy.Resolver{}, w.now); err != nil {
			t.Fatal(err)
		}
	}
	reload(learnRule("a", func(r *policy.Rule) { r.Learn.HoldOut = 0.1 }))
	w.e.Observe(late)
	if p := w.path("203.0.113.0/24"); p.Samples != 41 || p.arm(bbr).Count < 20 || p.HoldOut.Share < 0.09 {
		t.Errorf("after a reload: %+v", p)
	}
	if r := w.e.View(time.Unix(0, w.now)).Rules[1]; r.Paths != 1 || r.Samples != 41 || r.Class == 1 {
		t.Errorf("rule %+v", r)
	}
	reload(learnRule("a", func(r *policy.Rule) { r.Learn.Objective = learn.Latency }))
	snap := w.e.View(time.Unix(0, w.now))
	if len(snap.Paths) != 0 || snap.Rules[1].Class == 1 || snap.Rules[1].Paths != 0 {
		t.Errorf("beliefs about throughput under another objective: %+v", snap.Rules[1])
	}
	if len(w.sink.rows) != 1 {
		t.Errorf("rows %v", w.sink.rows)
	}
	w.e.Observe(late) // begun under the former class
	if n := w.e.View(time.Unix(0, w.now)).Totals.Unattributed; n != 1 {
		t.Errorf("unattributed %d", n)
	}
}

// As soon as changed rules are in force, no connection gets the old settings of a rule. What
// was learned is kept.
func TestReloadWithoutOldRows(t *testing.T) {
	set := func(cwnd uint64) policy.Rule {
		return learnRule("all", func(r *policy.Rule) { r.Set.Set(tcp.InitCwnd, cwnd) })
	}
	w := newWorld(t, nil, set(10))
	to := ip("203.0.113.7")
	g := goods{cubic: 10, bbr: 50, reno: 10}
	w.run(60, to, g)
	before := w.path("203.0.113.0/24")
	pending := w.connect(to, g) // ends after the reload

	for _, cwnd := range []uint64{20, 30, 40} {
		switched := false
		w.sink.onRules = func() {
			switched = true
			cls := w.sink.table.Classes[w.sink.table.Classify(&class.Conn{Remote: to, Outgoing: true})]
			row, ok := w.sink.lookup(cls.ID, 0, to)
			if got, _ := row.Policy.Params.Get(tcp.InitCwnd); !ok || got != cwnd {
				t.Errorf("the moment that init_cwnd %d is in force, the row (there: %v) says %d", cwnd, ok, got)
			}
		}
		if err := w.e.SetRules([]policy.Rule{set(cwnd)}, policy.Resolver{}, w.now); err != nil {
			t.Fatal(err)
		}
		if !switched {
			t.Error("no rules were written")
		}
		w.sink.onRules = nil
	}
	classes := map[uint32]bool{}
	for k, row := range w.sink.rows {
		classes[k.Class] = true
		if got, _ := row.Policy.Params.Get(tcp.InitCwnd); got != 40 {
			t.Errorf("row %v says %d", k, got)
		}
	}
	if len(classes) != 1 || len(w.sink.rows) < 2 {
		t.Errorf("%d rows of classes %v are left", len(w.sink.rows), classes)
	}
	if after := w.path("203.0.113.0/24"); after.Samples != before.Samples {
		t.Errorf("%d samples after the reload, %d before", after.Samples, before.Samples)
	}
	w.e.Observe(pending)
	if after := w.path("203.0.113.0/24"); after.Samples != before.Samples+1 {
		t.Errorf("the sample of a connection that began before the reload is lost: %d, want %d", after.Samples, before.Samples+1)
	}
	if n := w.e.View(time.Unix(0, w.now)).Totals.Unattributed; n != 0 {
		t.Errorf("%d samples unattributed", n)
	}
	// Refused: all rows of the old rules are there, and soon no others.
	w.sink.noRules = errors.New("no room")
	if err := w.e.SetRules([]policy.Rule{set(50)}, policy.Resolver{}, w.now); err == nil {
		t.Error("no error")
	}
	w.sink.noRules = nil
	w.now += 2 * second
	w.run(1, to, g)
	for k, row := range w.sink.rows {
		if got, _ := row.Policy.Params.Get(tcp.InitCwnd); got != 40 {
			t.Errorf("after refused rules row %v says %d", k, got)
		}
	}
}

func TestRecompileFollowsNames(t *testing.T) {
	rule := learnRule("pods", func(r *policy.Rule) { r.Match.Cgroup = []string{"/pods"} })
	w := newWorld(t, nil, rule)
	if got := w.e.Waiting(); len(got) != 1 || got[0].Name != "/pods" {
		t.Fatalf("waiting %v", got)
	}
	var ids []uint64
	r := policy.Resolver{Cgroup: func(string) []uint64 { return ids }}
	for _, step := range []struct {
		ids     []uint64
		written int
		class   uint32
	}{{nil, 0, 0}, {[]uint64{42}, 1, 1}, {[]uint64{42}, 0, 1}, {[]uint64{43}, 1, 0}} {
		ids, w.sink.calls = step.ids, 0
		if err := w.e.Recompile(r); err != nil {
			t.Fatal(err)
		}
		if w.sink.calls != step.written {
			t.Errorf("ids %v: %d tables written, want %d", step.ids, w.sink.calls, step.written)
		}
		if got := w.e.Classify(&class.Conn{Remote: ip("203.0.113.9"), Cgroups: []uint64{42}}); got != step.class {
			t.Errorf("ids %v: class %d, want %d", step.ids, got, step.class)
		}
	}
	if len(w.e.Waiting()) != 0 {
		t.Errorf("waiting %v", w.e.Waiting())
	}
}

// memories saves all unsaved changes, encoded and decoded as the store does it.
func memories(t *testing.T, e *Engine, saved error) (changed []StoredPath, forgotten []PathID) {
	t.Helper()
	for more := true; more; {
		var c []StoredPath
		var f []PathID
		c, f, more = e.Unsaved(3)
		for _, m := range c {
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var back StoredPath
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatal(err)
			}
			changed = append(changed, back)
		}
		forgotten = append(forgotten, f...)
		e.Saved(time.Unix(0, start), saved)
		if saved != nil {
			break
		}
	}
	return changed, forgotten
}

// revive starts an engine with the memories of another one.
func revive(t *testing.T, opt func(*Options), kept []StoredPath, rules ...policy.Rule) (*world, int) {
	t.Helper()
	w, n := newWorld(t, opt, learnRule("placeholder")), 0
	w.e = New(options(w.sink))
	if opt != nil {
		o := options(w.sink)
		opt(&o)
		w.e = New(o)
	}
	w.e.SetOffered(offer(reno, bbr, cubic), tcp.CC{})
	w.sink.rows, w.sink.log = map[path.Key]path.Entry{}, nil
	err := w.e.Start(rules, policy.Resolver{}, func(keep func(StoredPath) bool) error {
		for _, m := range kept {
			if keep(m) {
				n++
			}
		}
		return nil
	}, start+3600*second)
	if err != nil {
		t.Fatal(err)
	}
	w.now = start + 3600*second
	return w, n
}

func TestPersistence(t *testing.T) {
	w := newWorld(t, nil)
	w.run(40, ip("203.0.113.9"), lossy)
	w.run(40, ip("203.0.113.10"), clean)
	w.run(40, ip("2001:db8::1"), lossy)
	before := w.e.View(time.Unix(0, w.now))
	kept, _ := memories(t, w.e, nil)
	if len(kept) != 5 { // the root, two paths, two hosts
		t.Fatalf("%d memories", len(kept))
	}
	if again, _ := memories(t, w.e, nil); len(again) != 0 {
		t.Errorf("%d saved twice", len(again))
	}
	v, n := revive(t, nil, kept, learnRule("all"), learnRule("other"))
	if n != len(kept) {
		t.Errorf("%d of %d were wanted", n, len(kept))
	}
	if got := v.sink.log[len(v.sink.log)-1]; got != "rules 2" {
		t.Errorf("the last write is %q: rules were in force before what was learned", got)
	}
	after := v.e.View(time.Unix(0, w.now))
	for i, p := range before.Paths {
		q := after.Paths[i]
		if p.Prefix != q.Prefix || p.Samples != q.Samples || p.MinRTT != q.MinRTT || p.HoldOut.Gain != q.HoldOut.Gain ||
			p.HoldOut.Count != q.HoldOut.Count || p.LastUsed != q.LastUsed {
			t.Errorf("before %+v\nafter  %+v", p, q)
		}
	}
	v.rng = w.rng
	if got := v.run(10, ip("203.0.113.9"), lossy); count(got, bbr) < 8 {
		t.Errorf("after a restart %v", got)
	}
}

func TestMemoriesThatNoLongerApply(t *testing.T) {
	w := newWorld(t, nil)
	w.run(20, ip("203.0.113.9"), lossy)
	w.run(20, ip("203.0.113.10"), lossy)
	kept, _ := memories(t, w.e, nil)
	for name, tc := range map[string]struct {
		opt  func(*Options)
		rule policy.Rule
		want int // of the root, the path and its two hosts
	}{
		"same":      {nil, learnRule("all"), 4},
		"renamed":   {nil, learnRule("some"), 0},
		"objective": {nil, learnRule("all", func(r *policy.Rule) { r.Learn.Objective = learn.FCT }), 0},
		"scope":     {nil, learnRule("all", func(r *policy.Rule) { r.Learn.OwnScope = true }), 0},
		"learner":   {func(o *Options) { o.Learner = learn.NewEpsilonGreedy(0.05, 0.25) }, learnRule("all"), 0},
		"wider":     {func(o *Options) { o.Bits = func(netip.Addr) int { return 16 } }, learnRule("all"), 3},
		"hosts":     {func(o *Options) { o.Bits = func(netip.Addr) int { return 32 } }, learnRule("all"), 3},
		"limit":     {func(o *Options) { o.Limit = 2 }, learnRule("all"), 4},
	} {
		t.Run(name, func(t *testing.T) {
			v, n := revive(t, tc.opt, kept, tc.rule)
			if n != tc.want {
				t.Errorf("%d wanted, want %d", n, tc.want)
			}
			if total := v.e.View(time.Unix(0, v.now)).Totals; total.Paths > total.PathLimit {
				t.Errorf("%d paths over the limit of %d", total.Paths, total.PathLimit)
			}
			v.run(3, ip("203.0.113.9"), lossy) // works on
		})
	}
}

// The paths that were used last are kept, whatever their order in the file.
func TestRestoredOrderOfUse(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 20 {
		w.run(1, netip.AddrFrom4([4]byte{10, 0, byte(19 - i), 1}), lossy)
	}
	kept, _ := memories(t, w.e, nil)
	v, _ := revive(t, func(o *Options) { o.Limit = 5 }, kept, learnRule("all"))
	for i := range 5 {
		v.path(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24).String())
	}
}

func TestFailedSaveLosesNothing(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limit = 8 })
	w.run(2, ip("203.0.113.9"), lossy)
	all, _ := memories(t, w.e, errRefused)
	again, _ := memories(t, w.e, nil)
	if len(all) == 0 || len(again) != len(all) {
		t.Fatalf("%d, and after a failed save %d", len(all), len(again))
	}
	for i := range 20 { // evicts it; most of these were never saved
		w.run(1, netip.AddrFrom4([4]byte{10, 0, byte(i), 1}), lossy)
	}
	for _, saved := range []error{errRefused, nil} {
		_, forgotten := memories(t, w.e, saved)
		if len(forgotten) != 1 || forgotten[0].Prefix.String() != "203.0.113.0/24" {
			t.Errorf("save error %v: forgotten %v, want the one path that was saved", saved, forgotten)
		}
	}
	if _, forgotten := memories(t, w.e, nil); len(forgotten) != 0 {
		t.Errorf("forgotten twice: %v", forgotten)
	}
	if n := w.e.View(time.Unix(0, w.now)).Totals.StoreErrors; n != 2 {
		t.Errorf("%d store errors, want 2", n)
	}
}

func TestYields(t *testing.T) {
	set := policy.Rule{Name: "set", Match: policy.Match{RemotePort: []policy.PortRange{{First: 80, Last: 80}}}}
	set.Set.Set(0, 20)
	w := newWorld(t, nil, set, learnRule("learn"))
	at := time.Unix(0, w.now)
	if w.e.SetYield(Yield{Sysctl: "x"}, Default{Field: 3}) || len(w.e.View(at).Yields) != 0 {
		t.Error("a field that no rule sets was yielded")
	}
	if !w.e.SetYield(Yield{Sysctl: "cc", Before: "cubic", After: "reno", Since: at}, Default{CC: true}) ||
		!w.e.SetYield(Yield{Sysctl: "f", Before: "1", After: "2"}, Default{Field: 0}) {
		t.Error("not yielded")
	}
	if w.e.SetYield(Yield{Sysctl: "cc", Before: "reno", After: "cubic", Since: at.Add(1)}, Default{CC: true}) {
		t.Error("yielded twice")
	}
	y := w.e.View(at).Yields
	if len(y) != 2 || y[0].Field != "cc" || y[0].Before != "cubic" || y[0].After != "cubic" || !y[0].Since.Equal(at) || y[1].Field != tcp.Field(0).String() {
		t.Errorf("%+v", y)
	}
	w.e.Tick(w.now)
	for _, row := range w.sink.rows { // other network namespaces still get it
		if row.Policy.NumArms == 0 && row.Policy.Params.Mask() == 0 {
			t.Errorf("nothing is given: %+v", row)
		}
	}
	w.run(3, ip("203.0.113.9"), lossy)
	if cc, fields := w.e.Yields(); !cc || fields != 1 {
		t.Errorf("yields %v %b", cc, fields)
	}
	w.e.ClearYields()
	w.e.Tick(w.now)
	if got := w.run(40, ip("203.0.113.9"), lossy); count(got[20:], bbr) < 17 {
		t.Errorf("after the reload: %v", got)
	}
}

func TestExplainAgreesWithTheKernel(t *testing.T) {
	lo := policy.Rule{Name: "lo", Leave: true, Match: policy.Match{Remote: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}
	own := learnRule("own", func(r *policy.Rule) {
		r.Learn.OwnScope = true
		r.Match.Remote = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	})
	w := newWorld(t, nil, lo, own, learnRule("all"))
	for _, a := range []string{"203.0.113.9", "203.0.113.10", "198.51.100.1", "2001:db8::1"} {
		w.run(5, ip(a), lossy)
	}
	for _, a := range []string{"203.0.113.9", "203.0.113.77", "203.0.114.1", "198.51.100.1", "198.51.100.2", "2001:db8::9", "2001:db9::1", "127.0.0.1", "::ffff:203.0.113.9"} {
		for _, ns := range []uint64{7, 8} {
			c := &class.Conn{Remote: ip(a), NetNS: ns, Outgoing: true}
			got := w.e.Explain(c, time.Unix(0, w.now))
			i := w.sink.table.Classify(c)
			if got.Rule.Name != w.e.Rules()[i].Name || got.Rule.Class != w.sink.table.Classes[i].ID {
				t.Fatalf("%s: rule %s", a, got.Rule.Name)
			}
			if w.sink.table.Classes[i].Leave {
				if got.Entry != nil {
					t.Errorf("%s: an entry for what is left alone", a)
				}
				continue
			}
			scope := uint64(0)
			if w.sink.table.Classes[i].OwnScope {
				scope = ns
			}
			row, _ := w.sink.lookup(got.Rule.Class, scope, ip(a).Unmap())
			if got.Entry == nil || got.Entry.PolicyID != row.ID || got.Entry.Key != row.Key || got.IsRoot != row.Key.IsRoot() {
				t.Errorf("%s in %d: explained by %v id %d, the kernel would use %v id %d", a, ns, got.Entry.Key, got.Entry.PolicyID, row.Key, row.ID)
			}
		}
	}
	w.e.SetRules([]policy.Rule{lo}, policy.Resolver{}, w.now)
	if got := w.e.Explain(&class.Conn{Remote: ip("203.0.113.9")}, time.Unix(0, w.now)); got.Rule != nil {
		t.Errorf("explained by %+v", got.Rule)
	}
}

func TestDeterminism(t *testing.T) {
	var snaps [2][]byte
	var logs [2]uint64
	for i := range snaps {
		w := newWorld(t, func(o *Options) { o.Limit = 64 }, learnRule("a", func(r *policy.Rule) {
			r.Match.Remote = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
			r.Learn.OwnScope = true
		}), learnRule("b"))
		for k := range 300 {
			a := netip.AddrFrom4([4]byte{10, byte(k % 3), byte(k % 31), byte(k % 5)})
			w.run(1, a, lossy, func(s *tcp.Sample) { s.NetNS = uint64(k % 4) })
			if k == 200 {
				w.e.SetOffered(offer(cubic, bbr), tcp.CC{})
				if err := w.e.SetRules([]policy.Rule{learnRule("b"), learnRule("c")}, policy.Resolver{}, w.now); err != nil {
					t.Fatal(err)
				}
			}
		}
		snaps[i], _ = json.Marshal(w.e.View(time.Unix(0, w.now)))
		logs[i] = w.sink.digest()
	}
	if string(snaps[0]) != string(snaps[1]) {
		t.Errorf("two snapshots of the same samples differ:\n%s\n%s", snaps[0], snaps[1])
	}
	if logs[0] != logs[1] {
		t.Error("the same samples led to other writes")
	}
}

// Concurrent readers and writers, for the race detector.
func TestConcurrentUse(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limit = 64 })
	var samples []*tcp.Sample
	for i := range 500 {
		s := w.connect(netip.AddrFrom4([4]byte{10, 0, byte(i % 100), 1}), lossy)
		s.At = w.now + int64(i)*second/100
		samples = append(samples, s)
	}
	done := make(chan struct{})
	readers := []func(){
		func() { w.e.Snapshot(time.Now()) },
		func() { w.e.View(time.Now()) },
		func() { w.e.Explain(&class.Conn{Remote: ip("10.0.0.1")}, time.Now()) },
		func() { _, _, _ = w.e.Unsaved(10); w.e.Saved(time.Now(), nil) },
		func() { w.e.Recompile(policy.Resolver{}); w.e.Waiting(); w.e.Fields(); w.e.Yields() },
	}
	for _, f := range readers {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 50 {
				f()
			}
		}()
	}
	for i, s := range samples {
		w.e.Observe(s)
		w.e.Tick(s.At)
		if i%100 == 50 {
			if err := w.e.SetRules([]policy.Rule{learnRule("all")}, policy.Resolver{}, s.At); err != nil {
				t.Error(err)
			}
			w.e.SetOffered(offer([]tcp.CC{reno, bbr, cubic}[i%3:]...), tcp.CC{})
		}
	}
	for range readers {
		<-done
	}
}

// Samples are observed during writes to the kernel, while paths are created and evicted.
// Afterwards the rows in the kernel are those that the engine has recorded.
func TestSamplesDoNotWaitForWrites(t *testing.T) {
	const limit = 400
	w := newWorld(t, func(o *Options) { o.Limit = limit }, learnRule("all"))
	next, observed := 0, uint64(0)
	during := func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 30 {
				next++
				s := w.connect(netip.AddrFrom4([4]byte{10, byte(next >> 8), byte(next), 1}), lossy)
				s.At = w.now
				w.e.Observe(s)
				observed++
			}
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("a sample waits for a write")
		}
	}
	w.sink.onWrite, w.sink.onRules = during, during
	for i := range 30 {
		during()
		w.now += 2 * second
		switch i % 3 {
		case 0:
			w.e.Settle(w.now)
		case 1:
			w.e.Tick(w.now)
		default:
			rules := []policy.Rule{learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut = 0.01 * float64(i+1) })}
			if err := w.e.SetRules(rules, policy.Resolver{}, w.now); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.sink.onWrite, w.sink.onRules = nil, nil
	w.e.Settle(w.now)

	if rs := w.e.rules.states[0]; rs.samples != observed || rs.paths != w.e.cache.byUse.len {
		t.Errorf("%d samples and %d paths are counted of %d and %d", rs.samples, rs.paths, observed, w.e.cache.byUse.len)
	}
	rows := 0
	for k, n := range w.e.nodes {
		if n.id == 0 {
			continue
		}
		rows++
		if row, ok := w.sink.rows[k.path()]; !ok || row.ID != n.id {
			t.Errorf("%v: policy %d is not in the kernel: %+v", k.path(), n.id, row)
		}
	}
	if rows != len(w.sink.rows) || w.e.totals.Evicted == 0 {
		t.Errorf("%d rows in the kernel, %d of them known; %d paths evicted", len(w.sink.rows), rows, w.e.totals.Evicted)
	}
}

func TestSnapshotIsSharedAndDropped(t *testing.T) {
	w := newWorld(t, nil)
	w.run(2, ip("203.0.113.9"), lossy)
	at := time.Unix(0, w.now)
	a := w.e.Snapshot(at)
	if b := w.e.Snapshot(at.Add(snapshotAge / 2)); a != b {
		t.Error("a second snapshot within a second")
	}
	if b := w.e.Snapshot(at.Add(snapshotAge)); a == b {
		t.Error("an old snapshot")
	}
	if w.e.DropSnapshot(at.Add(snapshotAge)) || !w.e.DropSnapshot(at.Add(snapshotAge+2*snapshotLife)) || w.e.DropSnapshot(at.Add(time.Hour)) {
		t.Error("dropped too early, not, or twice")
	}
	if s := w.e.Summary(at); len(s.Paths) != 0 || len(s.Rules) != 1 || s.Totals.Paths != 1 {
		t.Errorf("summary %+v", s)
	}
}

func TestKey(t *testing.T) {
	for _, a := range []string{"0.0.0.0", "10.1.2.3", "255.255.255.255", "::", "::1", "2001:db8:1:2:3:4:5:6", "::ffff:10.1.2.3", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::10.1.2.3"} {
		for bits := 0; bits <= 128; bits++ {
			want := path.Of(3, 5, ip(a), bits)
			if got := keyOf(3, 5, ip(a), bits).path(); got != want {
				t.Fatalf("%s/%d: %v, want %v", a, bits, got, want)
			}
		}
	}
	if keyOf(1, 2, ip("10.1.2.3"), 24) != keyOf(1, 2, ip("::ffff:10.1.2.99"), 24) {
		t.Error("v4-mapped addresses are other paths")
	}
}

// The rows of paths are renewed after a rule was edited as well.
func TestRenewalAfterAnEdit(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 5 {
		w.run(3, nth(i), lossy)
	}
	if err := w.e.SetRules([]policy.Rule{learnRule("all", withFields)}, policy.Resolver{}, w.now); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		w.now += int64(time.Minute)
		w.e.Tick(w.now)
		for k, row := range w.sink.rows {
			if row.Expires <= w.now {
				t.Fatalf("%v expired", k)
			}
		}
	}
	n := 0
	w.e.rows.byWrite.each(func(*node) { n++ })
	if n != len(w.sink.rows) || n != w.e.rows.byWrite.len {
		t.Errorf("%d nodes are listed of %d, with %d rows", n, w.e.rows.byWrite.len, len(w.sink.rows))
	}
}

// The record of a rule has the time of its latest connection: a store that is full drops the records that were not used for longest,
// and with that of the rule, that a guard took its rollout back.
func TestRecordsOfRulesAreInUse(t *testing.T) {
	fixed := policy.Rule{Name: "fixed", Rollout: 0.5}
	fixed.Set.Set(tcp.InitCwnd, 20)
	for _, rule := range []policy.Rule{learnRule("all"), learnRule("own", func(r *policy.Rule) { r.Learn.OwnScope = true }), fixed} {
		w := newWorld(t, nil, rule)
		w.run(30, ip("203.0.113.9"), lossy)
		roots := 0
		changed, _ := memories(t, w.e, nil)
		for _, m := range changed {
			if m.Prefix.Bits() != 0 {
				continue
			}
			if roots++; m.LastUsed < w.now-10*second {
				t.Errorf("rule %s, scope %d: last used %v", rule.Name, m.Scope, time.Unix(0, m.LastUsed))
			}
		}
		if roots == 0 {
			t.Errorf("rule %s: no record", rule.Name)
		}
	}
}
