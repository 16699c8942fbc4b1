package engine

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// runFirst makes n connections to a path that holds many packets. They have its initial window, and lose some packets of it.
func runFirst(w *world, n int, lost uint16) {
	w.gap = second / 10
	for range n {
		most, row := windowOf(w, "198.51.100.7")
		if row.Policy.WindowExpires <= w.now || most == 0 {
			most = 10
		}
		w.run(1, ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100}, func(s *tcp.Sample) {
			s.Ssthresh, s.Flags, s.Cwnd = tcp.InfiniteSsthresh, s.Flags|tcp.FlagAppLimited, 200
			s.Lost, s.Retrans = uint32(lost), uint32(lost)
			s.SRTT, s.RTTVar, s.DataSegsOut = s.MinRTT+200, 100, 100_000 // so many that the loss is a small share
			if most > 10 {
				s.InitCwnd, s.InitLost = uint16(most), lost
			}
		})
	}
}

// A restart does not forget that windows were halved. What an earlier version stored has no such bound, and what cannot be has
// no effect.
func TestFirstWindowsAreStored(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", windowRule))
	runFirst(w, 30, 0)
	runFirst(w, 1, 20)
	if most, _ := windowOf(w, "198.51.100.7"); most != 32 {
		t.Fatalf("at most %d, want 32", most)
	}
	if n := w.e.Summary(time.Unix(0, w.now)).Totals; n.InitialHalved != 1 || n.InitialLost != 20 || n.InitialPackets < 64 || n.InitialPackets%64 != 0 {
		t.Errorf("counted %d packets of raised windows, %d lost, halved %d times", n.InitialPackets, n.InitialLost, n.InitialHalved)
	}
	kept, _ := memories(t, w.e, nil)
	for name, c := range map[string]struct {
		change func(m map[string]any)
		want   uint64
	}{
		"as stored":          {func(map[string]any) {}, 32},
		"an earlier version": {func(m map[string]any) { delete(m, "first_windows") }, 64},
		"of the future": {func(m map[string]any) {
			m["first_windows"] = map[string]any{"most_packets": 10, "changed_at_ns": int64(1) << 62, "cut_at_ns": int64(1) << 62}
		}, 15},
		"impossible figures": {func(m map[string]any) {
			m["first_windows"] = map[string]any{"most_packets": 65535, "sent_packets": -3e38, "lost_packets": 3e38, "cut_loss": -1e30, "changed_at_ns": int64(-1) << 63, "cut_at_ns": int64(-1) << 63, "logged_at_ns": int64(1) << 62}
		}, 64},
	} {
		t.Run(name, func(t *testing.T) {
			next := newWorld(t, nil)
			err := next.e.Start([]policy.Rule{learnRule("all", windowRule)}, policy.Resolver{}, func(keep func(StoredPath) bool) error {
				for _, m := range kept {
					keep(edit(t, m, c.change))
				}
				return nil
			}, w.now)
			if err != nil {
				t.Fatal(err)
			}
			next.now = w.now
			next.e.Tick(next.now)
			rs := next.e.rules.states[0]
			row := next.sink.rows[keyOf(rs.class, 0, ip("198.51.100.7"), 24).path()]
			if most, _ := row.Policy.Params.Get(tcp.InitCwnd); most != c.want {
				t.Errorf("at most %d, want %d", most, c.want)
			}
			s := w.sample(ip("198.51.100.7"))
			s.Class, s.InitCwnd, s.InitLost, s.DataSegsOut, s.Lost = rs.class, 64, 64, 100, 64
			next.e.Observe(s) // nothing panics
			next.e.View(time.Unix(0, next.now))
		})
	}
}

// If the rule does not adapt initial windows any more, what was stored of them is dropped: the hold-out is compared as on other
// paths then.
func TestFirstWindowsOfARuleThatDoesNotAdaptThem(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", windowRule))
	runFirst(w, 30, 0)
	kept, _ := memories(t, w.e, nil)
	for _, adapt := range []bool{true, false} {
		rule := learnRule("all", windowRule)
		if !adapt {
			rule = learnRule("all", adaptRule)
		}
		next, _ := revive(t, nil, kept, rule)
		n := next.e.nodes[keyOf(next.e.rules.states[0].class, 0, ip("198.51.100.7"), 24)]
		if n == nil || (n.first != nil) != adapt || n.changesTransfers() != adapt {
			t.Errorf("adapt %v: %+v", adapt, n)
		}
	}
}

// edit changes the JSON of a stored path.
func edit(t *testing.T, m StoredPath, change func(map[string]any)) (out StoredPath) {
	t.Helper()
	text, err := json.Marshal(m)
	fields := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err != nil || d.Decode(&fields) != nil {
		t.Fatal("a stored path is no JSON object")
	}
	if m.Prefix.Bits() != 0 {
		if _, ok := fields["first_windows"]; !ok {
			t.Fatalf("no first windows in %s", text)
		}
	}
	change(fields)
	if text, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// The log says once in ten minutes that the windows of a path are halved, however many connections lose packets.
func TestHalvedFirstWindowsAreLogged(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) }, learnRule("all", windowRule))
	lines := func() int { return strings.Count(log.String(), "raised windows lost packets on a path: halved") }
	runFirst(w, 30, 0)
	if lines() != 0 {
		t.Fatalf("without losses: %s", &log)
	}
	runFirst(w, 1, 20)
	if want := "most_packets=32 rule=all path=198.51.100.0/24 lost_share=0.0429"; lines() != 1 || !strings.Contains(log.String(), want) {
		t.Errorf("after a loss: %s, want %s", &log, want)
	}
	for range 8 { // windows recover, and are halved again
		runFirst(w, 400, 0)
		runFirst(w, 5, 8)
	}
	if n := lines(); n != 1 {
		t.Errorf("%d lines in %d s", n, 10*60)
	}
	w.now += int64(halvedAgain)
	runFirst(w, 400, 0)
	runFirst(w, 5, 8)
	if n := lines(); n != 2 {
		t.Errorf("%d lines after ten minutes more", n)
	}
}

// Jumps to a window that the rule sets are not counted as windows that were raised by what the path has shown.
func TestWindowsThatARuleSets(t *testing.T) {
	for _, set := range []bool{false, true} {
		w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) {
			if set {
				r.Set.Set(tcp.ResumeCwnd, 500)
			}
		}))
		w.run(5, guardedHost, allAlike, func(s *tcp.Sample) { s.ResumeCwnd, s.InitLost, s.DataSegsOut = 500, 20, 5000 })
		n := w.e.Summary(time.Unix(0, w.now)).Totals
		if raised := n.InitialPackets != 0 || n.InitialLost != 0; raised == set {
			t.Errorf("set by the rule: %v; %d packets, %d lost", set, n.InitialPackets, n.InitialLost)
		}
		kept, _ := memories(t, w.e, nil)
		for _, m := range kept {
			if m.Prefix.Bits() != 0 && (m.First == nil) != set {
				t.Errorf("set by the rule: %v; %s has %+v", set, m.Prefix, m.First)
			}
		}
	}
}
