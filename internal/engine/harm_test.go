package engine

import (
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

var harmPaths = flag.Int("paths", 3, "paths of each kind on which the guard is simulated")

// untilHarm has 20 connections at a time for two hours on a path whose arm in use, bbr, is as good as the
// default, cubic, and then for up to 8 hours more with connections that take what takes says. It returns
// after how many hours of those the path is left to the default (0: before; 8: never), and which part of the
// connections were held out until then.
func untilHarm(t *testing.T, seed uint64, takes func(*transfer) (share, wasted float64)) (hours, heldOut float64, w *world) {
	w = newWorld(t, func(o *Options) { o.Learner = lastArm{learn.DefaultThompson()} },
		learnRule("all", func(r *policy.Rule) { r.Learn.Arms = []tcp.CC{bbr} }))
	w.e.slices = true // lastArm hides that its learner uses slices
	w.rng = rand.New(rand.NewPCG(seed, 5))
	w.now += int64(seed) * 977 * second
	w.e.SetOffered(offer(cubic, bbr), cubic)
	w.e.Settle(w.now)
	c := &overlapping{world: w, to: guardedHost, n: map[tcp.CC]int{}, step: 50 * time.Millisecond, slowOnes: 0.1, varies: 0.2,
		takes: alike}
	c.run(20, 2*time.Hour)
	clear(c.n)
	c.takes = takes
	const part = 3 * time.Minute
	for hours < 7.99 && w.path("203.0.113.0/24").LeftToDefault == nil {
		c.run(20, part)
		hours += part.Hours()
	}
	return hours, float64(c.n[cubic]) / float64(c.n[cubic]+c.n[bbr]), w
}

func alike(*transfer) (share, wasted float64) { return 1, 0 }

// An arm that becomes worse than the default on a path with many connections at a time is found in about
// an hour, by the slices held out. An arm that is as good as the default is not, nor is one that is better although the
// default takes more from the queue that both are in. With -paths 200 the error is measured.
func TestHarmAmongOverlappingConnections(t *testing.T) {
	arm := func(share, wasted float64) func(*transfer) (float64, float64) {
		return func(t *transfer) (float64, float64) {
			if t.CC == bbr {
				return share, wasted
			}
			return 1, 0
		}
	}
	for _, c := range []struct {
		name         string
		takes        func(*transfer) (share, wasted float64)
		median, most float64 // hours; 0: it is not left to the default
	}{
		{"1.3 times as long", arm(1, 0.23), 1, 2},
		{"the same, and takes from the default", arm(4, 0.23), 1, 2},
		{"3 times as long, and takes from the default", arm(4, 0.7), 1, 2},
		{"the slowest in 20 take 1.5 times as long", func(t *transfer) (float64, float64) {
			if t.CC == bbr && t.slow {
				return 1 / 2.1, 0
			}
			return 1, 0
		}, 1.6, 5},
		{"alike", alike, 0, 0},
		{"better by a tenth, and the default takes from it", arm(0.25, -0.1), 0, 0},
		{"1.3 times as fast", arm(1, -0.3), 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var hours []float64
			held, wrong := 0.0, 0
			for seed := range uint64(*harmPaths) {
				h, part, w := untilHarm(t, seed, c.takes)
				hours = append(hours, h)
				held += part / float64(*harmPaths)
				if p := w.path("203.0.113.0/24"); h == 0 || c.most == 0 && p.LeftToDefault != nil {
					wrong++
					t.Logf("left to the default: %s", p.LeftToDefault.Why)
				} else if c.most != 0 && (p.LeftToDefault == nil || !strings.Contains(p.LeftToDefault.Why, "those held out")) {
					t.Errorf("%+v", p.LeftToDefault)
				}
			}
			if wrong > *harmPaths/20 {
				t.Errorf("%d of %d paths are left to the default without harm", wrong, *harmPaths)
			}
			slices.Sort(hours)
			if c.most != 0 && (hours[len(hours)/2] > c.median || hours[len(hours)-1] > c.most) {
				t.Errorf("after %.2f hours, want %g in the median and %g at most", hours, c.median, c.most)
			}
			if c.most == 0 && held > 0.1 {
				t.Errorf("%.3f of the connections are held out", held)
			}
			t.Logf("after %.2f hours; %.3f held out; %d wrong", hours, held, wrong)
		})
	}
}

// A path goes on where it was after a restart, unless what is compared changed.
func TestSliceTestOutlivesTheProcess(t *testing.T) {
	rule := learnRule("all", func(r *policy.Rule) { r.Learn.Arms = []tcp.CC{bbr} })
	w := newWorld(t, nil, rule)
	c := &overlapping{world: w, to: guardedHost, n: map[tcp.CC]int{}, step: 50 * time.Millisecond, takes: alike}
	c.run(20, 10*time.Minute)
	test := func(w *world) *learn.SliceTest {
		return w.e.nodes[keyOf(w.e.rules.states[0].root.key.class, 0, guardedHost, 24)].slices
	}
	if test(w) == nil || test(w).Slices < 20 {
		t.Fatalf("%+v", test(w))
	}
	kept, _ := memories(t, w.e, nil)
	if v, _ := revive(t, nil, kept, rule); *test(v) != *test(w) {
		t.Errorf("%+v, want %+v", test(v), test(w))
	}
	before := *test(w)
	c.run(20, time.Minute)
	for _, m := range kept {
		if m.SliceTest != nil && *m.SliceTest != before {
			t.Errorf("what is stored changes with the path: %+v", m.SliceTest)
		}
	}
	rule.Set.Set(tcp.InitCwnd, 20)
	if v, _ := revive(t, nil, kept, rule); test(v) != nil {
		t.Errorf("another value is set: %+v", test(v))
	}
}

// More is held out of a path only while many of its connections overlap, and not of one of several hosts
// that share the draws of slices.
func TestMoreIsHeldOutOnlyWhereSlicesAreTested(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Learn.Arms = []tcp.CC{bbr} }))
	c := &overlapping{world: w, to: guardedHost, n: map[tcp.CC]int{}, step: 50 * time.Millisecond, takes: alike}
	c.run(20, 10*time.Minute)
	n := w.e.nodes[keyOf(w.e.rules.states[0].root.key.class, 0, guardedHost, 24)]
	n.slices.Recent = 2
	if more := w.e.input(n, w.now).MoreHeldOut; more != 8 {
		t.Errorf("%g times as many", more)
	}
	if more := w.path("203.0.113.0/24").HoldOut.More; more != 8 {
		t.Errorf("%g times as many are shown", more)
	}
	n.lifetimes.many = false
	if more := w.e.input(n, w.now).MoreHeldOut; more != 1 {
		t.Errorf("few connections overlap: %g times as many", more)
	}
	n.lifetimes.many = true
	network := &node{hosts: true, lifetimes: n.lifetimes}
	host := &node{parent: network, rule: n.rule, comparisons: n.comparisons, lifetimes: n.lifetimes}
	if more := host.moreHeldOut(); more != 1 {
		t.Errorf("one of several hosts: %g times as many", more)
	}
}
