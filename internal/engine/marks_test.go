package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Constants of package guard: how many connections in a row must get no mark, and how many
// of them must be sequential.
const unmarkedMost, unmarkedApart = 8, 3

// insideHost is in a private network, where arms that need ECN may be used.
var insideHost = ip("10.0.113.9")

// Any peer can forge a mark, so one marked connection is not enough.
func TestMarksMustBeProved(t *testing.T) {
	marks := func(s *tcp.Sample) { s.Flags |= tcp.FlagECN; s.DeliveredCE = 5 }
	g := goods{cubic: 100, bbr: 100, dctcp: 100}
	for _, c := range []struct {
		name      string
		host      string
		marked    int
		arms      []tcp.CC // of the rule
		same      int      // first bits that the rule wants to be those of the local address
		want, bbr bool     // whether dctcp, and bbr, is used afterwards
	}{
		{"one mark", "10.0.113.9", 1, nil, 0, false, true},
		{"several", "10.0.113.9", provenMarks, nil, 0, true, false},
		{"several, from the Internet", "203.0.113.9", provenMarks, nil, 0, false, false},
		{"several, and the rule names it", "203.0.113.9", provenMarks, []tcp.CC{cubic, bbr, dctcp}, 0, true, false},
		{"several, and the rule is for near hosts", "192.0.2.9", provenMarks, nil, 24, true, false},
	} {
		w := newWorld(t, func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} },
			learnRule("all", func(r *policy.Rule) { r.Learn.Arms, r.Match.Same.IPv4 = c.arms, c.same }))
		w.e.SetOffered([]congestion.Control{congestion.Of(cubic), congestion.Of(bbr), congestion.Of(dctcp)}, tcp.CC{})
		w.e.Settle(w.now)
		w.run(c.marked, ip(c.host), g, marks)
		w.run(5, ip(c.host), g)
		got := w.run(60, ip(c.host), g)
		if (count(got, dctcp) > 0) != c.want || (count(got, bbr) > 0) != c.bbr {
			t.Errorf("%s: dctcp %d, bbr %d of 60 connections", c.name, count(got, dctcp), count(got, bbr))
		}
	}
}

func TestMarksLost(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} })
	w.e.SetOffered(offer(cubic, dctcp), tcp.CC{})
	w.e.Settle(w.now)
	g := goods{cubic: 100, dctcp: 100}
	lost := func(s *tcp.Sample) { s.Flags |= tcp.FlagECN; s.Lost = 5 }
	marked := func(s *tcp.Sample) { lost(s); s.DeliveredCE = 5 }
	w.run(provenMarks, insideHost, g, marked)
	n := 0
	now := func(s *tcp.Sample) { // every fourth is marked
		if s.Arm == dctcp && s.BytesAcked > 0 {
			if n++; n%4 == 0 {
				marked(s)
			}
		}
		lost(s)
	}
	if got := w.run(100, insideHost, g, now); count(got, dctcp) < 30 || w.retired("10.0.113.0/24", dctcp) != nil {
		t.Errorf("dctcp %d of 100, %+v: marks are made", count(got, dctcp), w.retired("10.0.113.0/24", dctcp))
	}
	got := w.run(60, insideHost, g, lost)
	if r := w.retired("10.0.113.0/24", dctcp); r == nil || r.Guard != "marks-lost" || count(got[30:], dctcp) != 0 {
		t.Errorf("%+v, dctcp %d of the last 30", r, count(got[30:], dctcp))
	}
	if got := w.run(20, insideHost, g, marked); count(got, dctcp) != 0 {
		t.Error("marks again, and it is back at once")
	}
	w.now += int64(10 * time.Minute)
	w.e.Tick(w.now)
	if got := w.run(40, insideHost, g, marked); count(got, dctcp) == 0 {
		t.Error("marks again, and it is not back after ten minutes")
	}
}

// noECN is a connection without ECN, in which an arm that needs ECN falls back to Reno.
func noECN(s *tcp.Sample) {
	if s.Arm == dctcp {
		s.CC, s.Flags = reno, s.Flags|tcp.FlagCCChanged
	}
}

// provenWorld has dctcp as an arm on the path of insideHost, where a mark was seen.
func provenWorld(t *testing.T) *world {
	w := newWorld(t, func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} })
	w.e.SetOffered(offer(cubic, dctcp), tcp.CC{})
	w.e.Settle(w.now)
	w.run(provenMarks, insideHost, goods{cubic: 100}, func(s *tcp.Sample) { s.Flags |= tcp.FlagECN; s.DeliveredCE = 5 })
	return w
}

// A path that had marks no longer negotiates ECN: no sample of the arm is scored.
func TestMarksLostWithoutECN(t *testing.T) {
	for _, c := range []struct {
		name   string
		marked int // every how many connections of the arm have ECN and a mark; 0: none
		lossy  int // the same for ECN and losses
		want   string
	}{
		{"none has ECN", 0, 0, "8 connections in a row were made without ECN"},
		{"some have, and lose", 0, 3, "8 connections in a row received no mark: 6 were made without ECN"},
		{"some have, and marks", 5, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, given := provenWorld(t), 0
			w.run(60, insideHost, goods{cubic: 100, dctcp: 100}, func(s *tcp.Sample) {
				if s.Arm != dctcp {
					return
				}
				switch given++; {
				case c.marked != 0 && given%c.marked == 0:
					s.Flags |= tcp.FlagECN
					s.DeliveredCE = 5
				case c.lossy != 0 && given%c.lossy == 0:
					s.Flags |= tcp.FlagECN
					s.Lost = 5
				default:
					noECN(s)
				}
			})
			r := w.retired("10.0.113.0/24", dctcp)
			switch {
			case c.want == "" && (r != nil || given < 20):
				t.Errorf("given %d times, %+v", given, r)
			case c.want != "" && (r == nil || r.Guard != "marks-lost" || !strings.HasPrefix(r.Why, c.want)):
				t.Errorf("%+v, want %q", r, c.want)
			case c.want != "" && given != unmarkedMost:
				t.Errorf("given %d times", given)
			}
		})
	}
}

// A connection whose congestion control tcpilot did not choose is no evidence about ECN.
func TestMarksLostByOthers(t *testing.T) {
	for _, flag := range []tcp.Flags{tcp.FlagAppCC, tcp.FlagArmFailed, tcp.FlagAdopted, tcp.FlagHoldOut} {
		w := provenWorld(t)
		w.run(60, insideHost, goods{cubic: 100, dctcp: 100}, func(s *tcp.Sample) {
			if noECN(s); s.Arm == dctcp {
				s.Flags |= flag
			}
		})
		if r := w.retired("10.0.113.0/24", dctcp); r != nil {
			t.Errorf("flag %b: %+v", flag, r)
		}
	}
}

// One burst may overflow a queue that marks: its losses are one event, however many
// connections were in it and whenever they end. Three bursts are evidence.
func TestMarksLostInOneBurst(t *testing.T) {
	for _, without := range []bool{false, true} {
		w := newWorld(t, nil)
		w.e.SetOffered(offer(cubic, dctcp), tcp.CC{})
		w.e.Settle(w.now)
		w.run(provenMarks, insideHost, goods{cubic: 100}, func(s *tcp.Sample) { s.Flags |= tcp.FlagECN; s.DeliveredCE = 5 })
		for bursts := 1; bursts <= unmarkedApart; bursts++ {
			w.now += 60 * second
			for i := range 2 * unmarkedMost {
				s := w.sample(insideHost)
				s.Duration += time.Duration(i) * time.Second // begun together
				s.At += int64(i) * second
				s.Class, s.Arm = w.sink.table.Classes[0].ID, dctcp
				w.transfer(s, goods{dctcp: 100})
				if without {
					noECN(s)
				} else {
					s.Flags |= tcp.FlagECN
					s.Lost = 5
				}
				w.e.Observe(s)
			}
			w.e.Settle(w.now)
			if retired := w.retired("10.0.113.0/24", dctcp) != nil; retired != (bursts == unmarkedApart) {
				t.Fatalf("without ECN: %v; retired %v after %d bursts", without, retired, bursts)
			}
		}
	}
}

// A host without a scored connection uses the policy, and the proof of ECN, of its prefix.
func TestMarksLostOfThePrefix(t *testing.T) {
	w := provenWorld(t)
	w.run(3, ip("10.0.113.10"), goods{cubic: 100, dctcp: 100}) // hosts have paths of their own
	for i := range unmarkedMost {
		w.now += second
		s := w.sample(ip(fmt.Sprintf("10.0.113.%d", 100+i)))
		s.Class, s.Arm = w.sink.table.Classes[0].ID, dctcp
		noECN(s)
		w.e.Observe(s)
	}
	w.e.Settle(w.now)
	if r := w.retired("10.0.113.0/24", dctcp); r == nil || r.Guard != "marks-lost" || !r.Until.After(time.Unix(0, w.now)) {
		t.Errorf("%+v", r)
	}
}

// A path on which many connections with ECN got no mark for a day is one of those that do not mark, until it proves to again.
// Restarts of the daemon change nothing.
func TestMarksEnd(t *testing.T) {
	ecn := func(s *tcp.Sample) { s.Flags |= tcp.FlagECN }
	g := goods{cubic: 100, bbr: 100}
	uses := func(w *world, change func(*tcp.Sample)) bool { return count(w.run(60, insideHost, g, change), bbr) > 0 }
	controls := []congestion.Control{congestion.Of(cubic), congestion.Of(bbr), congestion.Of(dctcp)}
	opt := func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} }
	begin := func(t *testing.T) *world {
		w := newWorld(t, opt)
		w.e.SetOffered([]congestion.Control{controls[0], controls[1]}, tcp.CC{})
		w.e.Settle(w.now)
		w.run(provenMarks, insideHost, g, func(s *tcp.Sample) { ecn(s); s.DeliveredCE = 5 })
		w.run(5, insideHost, g, ecn)
		if uses(w, ecn) {
			t.Fatal("bbr, which ignores marks, is used although the path marks")
		}
		return w
	}
	n := manyUnmarked
	few := func(s *tcp.Sample) { ecn(s); s.DataSegsOut = initialSegs }
	live := func(s *tcp.Sample) { ecn(s); s.Kind = tcp.KindInterval }
	marked := func(s *tcp.Sample) { live(s); s.DeliveredCE = 1 }
	for _, c := range []struct {
		name   string
		change func(*tcp.Sample)
		n      int
		wait   time.Duration
		last   func(*tcp.Sample) // nil: none
		ends   bool
	}{
		{"many in a day", ecn, n, 24 * time.Hour, nil, true},
		{"many in an hour", ecn, n, time.Hour, nil, false},
		{"few in a day", ecn, n / 2, 24 * time.Hour, nil, false},
		{"without ECN", func(*tcp.Sample) {}, n, 24 * time.Hour, nil, false},
		{"of a few packets each", few, n, 24 * time.Hour, nil, false},
		{"that have not ended", live, n, 24 * time.Hour, nil, false},
		{"and then one with marks, which has not ended", ecn, n, 24 * time.Hour, marked, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := begin(t)
			w.run(c.n/2, insideHost, g, c.change)
			kept, _ := memories(t, w.e, nil)
			v, _ := revive(t, opt, kept, learnRule("all"))
			v.e.SetOffered([]congestion.Control{controls[0], controls[1]}, tcp.CC{})
			v.now = w.now
			v.e.Settle(v.now)
			v.run(c.n/2-60, insideHost, g, c.change)
			if c.last != nil {
				v.run(1, insideHost, g, c.last)
			}
			v.now += int64(c.wait)
			v.run(1, insideHost, g, c.change)
			if got := uses(v, c.change); got != c.ends {
				t.Errorf("bbr is used: %v, want %v", got, c.ends)
			}
		})
	}
}
