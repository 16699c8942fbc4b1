package engine

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// waysToFail are the ways in which connections end that have no outcome.
var waysToFail = map[string]func(*tcp.Sample){
	"not established": func(s *tcp.Sample) {
		s.Kind, s.End = tcp.KindFailedConnect, tcp.EndRefused
		s.BytesAcked, s.DataSegsOut = 0, 0
	},
	"reset":     func(s *tcp.Sample) { s.End, s.BytesAcked, s.DataSegsOut, s.SegsOut = tcp.EndReset, 1000, 1, 1 },
	"timed out": func(s *tcp.Sample) { s.End, s.BytesAcked, s.DataSegsOut, s.SegsOut = tcp.EndTimeout, 0, 10, 10 },
	"aborted":   func(s *tcp.Sample) { s.End, s.BytesAcked, s.DataSegsOut, s.SegsOut = tcp.EndAborted, 0, 2, 2 },
}

// If what a rule gives makes connections fail, the guard takes it back: of a rule that learns or
// only sets values, rolled out to a part or to all.
func TestGuardSeesConnectionsThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		rule policy.Rule
		most int // connections that fail, of 2000
	}{
		"set, rolled out to a quarter":            {policy.Rule{Name: "all", Rollout: 0.25, CC: reno}, 60},
		"set, rolled out to a part that is small": {policy.Rule{Name: "all", Rollout: 0.02, CC: reno}, 20},
		"learn, rolled out to a quarter":          {learnRule("all", func(r *policy.Rule) { r.Rollout = 0.25; r.Set.Set(tcp.UserTimeout, 10) }), 60},
		"learn, rolled out to all":                {learnRule("all", func(r *policy.Rule) { r.Set.Set(tcp.UserTimeout, 10) }), 200},
		"learn, a larger hold-out":                {learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut = 0.1; r.Set.Set(tcp.UserTimeout, 10) }), 110},
	} {
		for how, fail := range waysToFail {
			var log bytes.Buffer
			w := newWorld(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) }, c.rule)
			w.e.SetOffered(offer(reno, bbr, cubic), cubic)
			w.e.Settle(w.now)
			failed := 0
			state := func() RuleState { return w.e.Summary(time.Unix(0, w.now)).Rules[0] }
			for range 2000 {
				w.run(1, guardedHost, allAlike, func(s *tcp.Sample) {
					if s.PolicyID != 0 && !s.Has(tcp.FlagHoldOut) { // 0: not drawn yet
						failed++
						fail(s)
					}
				})
				if r := state(); r.Rollout.Share == 0 || r.LeftToDefault != nil {
					break
				}
			}
			r := state()
			why := r.Rollout.Why
			if r.LeftToDefault != nil {
				why = r.LeftToDefault.Why
			}
			if failed > c.most || !strings.Contains(why, "100 % of connections failed or were aborted, with the default 0 %") || !strings.Contains(log.String(), "failed or were aborted") {
				t.Errorf("%s, %s: %d connections failed; %q", name, how, failed, why)
			}
			if c.rule.Rollout != 0 && r.Rollout.By != ByGuard || c.rule.Rollout == 0 && r.LeftToDefault == nil {
				t.Errorf("%s, %s: %+v, %+v", name, how, r.Rollout, r.LeftToDefault)
			}
			w.e.Settle(w.now)
			if got := w.run(10, guardedHost, allAlike); count(got, cubic) != 10 {
				t.Errorf("%s, %s: then %v", name, how, got)
			}
		}
	}
}

// One path on which what the rule gives makes connections fail is left to the default, and the
// others are not.
func TestGuardSeesAPathWhoseConnectionsFail(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut = 0.1; r.Set.Set(tcp.UserTimeout, 10) }))
	bad := ip("203.0.113.9")
	for i := range 4000 {
		w.run(1, nth(i%40), allAlike)
		if i%8 != 0 {
			continue
		}
		w.run(1, bad, allAlike, func(s *tcp.Sample) {
			if s.PolicyID != 0 && !s.Has(tcp.FlagHoldOut) && i > 400 {
				s.End, s.BytesAcked = tcp.EndTimeout, 1000
			}
		})
	}
	left := 0
	for _, p := range w.e.View(time.Unix(0, w.now)).Paths {
		if p.LeftToDefault != nil && p.Prefix != "203.0.113.0/24" {
			left++
		}
	}
	if n := w.e.nodes[keyOf(w.e.rules.states[0].root.key.class, 0, bad, 24)]; n.left == nil || !strings.Contains(n.left.Why, "failed") || left != 0 {
		t.Errorf("%+v, and %d others", n.left, left)
	}
}

// Failures that the peers cause meet the hold-out as well: a rule is not blamed for them.
func TestGuardDoesNotBlameARuleForItsPeers(t *testing.T) {
	for name, rule := range map[string]policy.Rule{
		"set":   {Name: "all", Rollout: 0.25, CC: reno},
		"learn": learnRule("all"),
	} {
		wrong := 0
		for seed := range uint64(40) {
			w := newWorld(t, nil, rule)
			w.rng, w.now = rand.New(rand.NewPCG(seed, 9)), w.now+int64(seed)*977*second
			w.e.SetOffered(offer(reno, bbr, cubic), cubic)
			w.e.Settle(w.now)
			down := 0
			for i := range 1500 {
				if w.rng.IntN(100) == 0 {
					down = 20
				}
				down--
				w.run(1, nth(i%10), allAlike, func(s *tcp.Sample) {
					if down > 0 || w.rng.IntN(10) == 0 {
						s.Kind, s.End, s.BytesAcked = tcp.KindFailedConnect, tcp.EndTimeout, 0
					}
				})
			}
			if r := w.e.Summary(time.Unix(0, w.now)).Rules[0]; r.Rollout.By != "" || r.LeftToDefault != nil {
				wrong++
			}
		}
		if wrong > 4 {
			t.Errorf("%s: in %d of 40 runs", name, wrong)
		}
		t.Log(name, wrong)
	}
}

// How many connections fail is compared over restarts, of the rule and of the path, unless what is
// compared changed meanwhile.
func TestComparisonOfFailuresOutlivesTheProcess(t *testing.T) {
	for name, rule := range map[string]policy.Rule{
		"set":                  {Name: "all", Rollout: 0.5, CC: reno},
		"learn":                initialWindow(1),
		"learn in a namespace": learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut, r.Learn.OwnScope = 0.1, true; r.Set.Set(tcp.InitCwnd, 1) }),
	} {
		w := newWorld(t, nil, rule)
		i := 0
		w.run(100, guardedHost, allAlike, func(s *tcp.Sample) {
			if i++; i%9 == 8 {
				s.Kind, s.End, s.BytesAcked = tcp.KindFailedConnect, tcp.EndTimeout, 0
			}
		})
		kept, _ := memories(t, w.e, nil)
		failures := func(w *world) (all []learn.Failures) {
			add := func(n *node) {
				if n != nil && n.failures != nil {
					all = append(all, *n.failures)
				}
			}
			rs := w.e.rules.states[0]
			add(rs.root)
			add(w.e.nodes[rootKey(rs.class, 7)])
			for _, scope := range []uint64{0, 7} {
				add(w.e.nodes[keyOf(rs.class, scope, guardedHost, 24)])
			}
			return all
		}
		before := failures(w)
		if want := map[string]int{"set": 1, "learn": 2, "learn in a namespace": 3}[name]; len(before) != want || before[0].Treated.N == 0 || before[0].Treated.Failed == 0 {
			t.Fatalf("%s: %+v", name, before)
		}
		v, _ := revive(t, nil, kept, rule)
		if after := failures(v); !reflect.DeepEqual(before, after) {
			t.Errorf("%s:\nbefore %+v\nafter  %+v", name, before, after)
		}
		more := w.connect(guardedHost, allAlike) // one more is saved as well
		more.Kind, more.End, more.At = tcp.KindFailedConnect, tcp.EndTimeout, w.now
		w.e.Observe(more)
		later, _ := memories(t, w.e, nil)
		if v, _ := revive(t, nil, append(kept, later...), rule); !reflect.DeepEqual(failures(w), failures(v)) || reflect.DeepEqual(before, failures(w)) {
			t.Errorf("%s: the latest is not saved", name)
		}
		rule.Set.Set(tcp.InitCwnd, 10)
		if v, _ := revive(t, nil, kept, rule); len(failures(v)) != 0 {
			t.Errorf("%s: what failed with another value counts", name)
		}
	}
}
