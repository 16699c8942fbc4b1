package engine

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// evenly gives every arm the same share, whatever was learned.
type evenly struct{ learn.Learner }

func (evenly) Weights(w []float64, arms []tcp.CC, _ int, _, _ *learn.Belief, _ int64) int {
	for i := range arms {
		w[i] = 1 / float64(len(arms))
	}
	return -1
}

var (
	guardedHost = ip("203.0.113.9")
	allAlike    = goods{cubic: 100, reno: 100, bbr: 100}
	bbrFails    = goods{cubic: 100, reno: 100, bbr: 20}
)

// guardedWorld has a hold-out of a quarter, and uses all arms equally.
func guardedWorld(t *testing.T) *world {
	w := newWorld(t, func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} },
		learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut = 0.25 }))
	w.armsOnly = true
	return w
}

// retired is why an arm is not used on the path of the host.
func (w *world) retired(prefix string, c tcp.CC) *ArmRetirement { return w.path(prefix).arm(c).Retired }

// sendsAgain sets the share of retransmitted packets, of bbr and of the other arms.
func sendsAgain(ofBBR, others float64) func(*tcp.Sample) {
	return func(s *tcp.Sample) {
		share := others
		if s.Arm == bbr {
			share = ofBBR
		}
		s.Retrans = uint32(share * float64(s.DataSegsOut))
		s.Lost = s.Retrans
	}
}

func TestGuards(t *testing.T) {
	for _, c := range []struct {
		name   string
		g      goods
		change func(*tcp.Sample)
		want   string // guard; empty: none
	}{
		{"a fifth of the hold-out's goodput", bbrFails, sendsAgain(0, 0), "reward-collapse"},
		{"two thirds of it", goods{cubic: 100, reno: 100, bbr: 66}, sendsAgain(0, 0), ""},
		{"twelve times the retransmits", allAlike, sendsAgain(0.12, 0.01), "retransmit-storm"},
		{"all of them retransmit", allAlike, sendsAgain(0.12, 0.12), ""},
		{"less than twice as many", allAlike, sendsAgain(0.15, 0.08), ""},
		{"few of either", allAlike, sendsAgain(0.04, 0.001), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := guardedWorld(t)
			starts := w.run(300, guardedHost, c.g, c.change)
			r := w.retired("203.0.113.0/24", bbr)
			switch {
			case c.want == "" && r != nil:
				t.Errorf("retired: %+v", r)
			case c.want != "" && (r == nil || r.Guard != c.want || r.Why == "" || r.Until.Sub(r.Since) != 10*time.Minute):
				t.Errorf("retired: %+v, want %s", r, c.want)
			case c.want != "" && count(starts[200:], bbr) != 0:
				t.Errorf("%d of the last 100 connections have it", count(starts[200:], bbr))
			}
			total := w.e.View(time.Unix(0, w.now)).Totals
			for which, n := range total.Retired {
				if (n == 1) != (which == c.want) {
					t.Errorf("counted %v, want %q once", total.Retired, c.want)
				}
			}
			if len(total.Retired) != int(guard.NumKinds) {
				t.Errorf("counted %v", total.Retired)
			}
		})
	}
}

// An objective other than goodput does not allow any loss of goodput: an arm with the
// shortest queue but hardly any goodput is retired, one that loses some goodput is not.
func TestGoodputCollapse(t *testing.T) {
	shortQueue := func(s *tcp.Sample) {
		if s.Arm == bbr {
			s.SRTT = s.MinRTT
		}
	}
	appLimited := func(s *tcp.Sample) {
		shortQueue(s)
		s.Flags |= tcp.FlagAppLimited
		s.Cwnd = 10_000
	}
	n := 0
	mostlyAppLimited := func(s *tcp.Sample) {
		if n++; n%50 == 0 {
			shortQueue(s)
		} else {
			appLimited(s)
		}
	}
	// A hold-out connection fills the queue, and takes from the connections that share it.
	heldTakes := func(s *tcp.Sample) {
		shortQueue(s)
		if s.Has(tcp.FlagHoldOut) {
			s.BytesAcked *= 10
		}
	}
	for _, c := range []struct {
		name   string
		g      goods
		change func(*tcp.Sample)
		want   string // guard; empty: none
	}{
		{"an eighth", goods{cubic: 100, reno: 100, bbr: 12}, shortQueue, "goodput-collapse"},
		{"two fifths", goods{cubic: 100, reno: 100, bbr: 40}, shortQueue, ""},
		{"an eighth, as the application sends no more", goods{cubic: 100, reno: 100, bbr: 12}, appLimited, ""},
		{"an eighth, of next to none that tell", goods{cubic: 100, reno: 100, bbr: 12}, mostlyAppLimited, ""},
		{"an eighth of the hold-out, all alike", allAlike, heldTakes, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} },
				learnRule("all", func(r *policy.Rule) { r.Learn.Objective, r.Learn.HoldOut = learn.Latency, 0.25 }))
			w.run(300, guardedHost, c.g, c.change)
			got := ""
			if r := w.retired("203.0.113.0/24", bbr); r != nil {
				got = r.Guard
			}
			if got != c.want {
				t.Errorf("retired by %q, want %q", got, c.want)
			}
			for _, arm := range []tcp.CC{cubic, reno} {
				if r := w.retired("203.0.113.0/24", arm); r != nil {
					t.Errorf("%s is retired: %+v", arm, r)
				}
			}
		})
	}
}

// If most connections of a slice are not scored for goodput, the others count in full.
func TestGoodputCollapseOnABusyPath(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Learn.Objective, r.Learn.HoldOut = learn.Latency, 0.1 }))
	g := goods{cubic: 100, reno: 100, bbr: 8}
	for i := range 40 { // slices, each with an arm of its own
		w.now = w.now>>30<<30 + 1<<30
		arm := []tcp.CC{cubic, bbr, reno}[i%3]
		for k := range 100 {
			s := w.sample(guardedHost)
			s.Class, s.Arm = w.sink.table.Classes[0].ID, arm
			if k%10 == 9 {
				s.Arm, s.CC, s.Flags = tcp.CC{}, cubic, s.Flags|tcp.FlagHoldOut
			}
			w.transfer(s, g)
			if s.Arm == bbr {
				s.SRTT = s.MinRTT
			}
			if k < 90 && k%10 != 9 {
				s.Flags |= tcp.FlagAppLimited
				s.Cwnd = 10_000
			}
			w.now += 1_000_000
			s.At = w.now
			w.e.Observe(s)
		}
		w.e.Tick(w.now)
	}
	if r := w.retired("203.0.113.0/24", bbr); r == nil || r.Guard != "goodput-collapse" {
		t.Errorf("%+v, want goodput-collapse", r)
	}
}

// Guards retire no arm for ordinary differences, nor if a path gets worse for all arms.
func TestGuardsDoNotActWithoutHarm(t *testing.T) {
	w := guardedWorld(t)
	w.run(1500, guardedHost, goods{cubic: 100, reno: 80, bbr: 70}, sendsAgain(0.03, 0.02))
	w.run(400, guardedHost, goods{cubic: 12, reno: 9, bbr: 9}, sendsAgain(0.08, 0.08))
	for which, n := range w.e.View(time.Unix(0, w.now)).Totals.Retired {
		if n != 0 {
			t.Errorf("%s acted %d times", which, n)
		}
	}
}

// Without a hold-out there is nothing to compare with, and no memory is spent.
func TestGuardsNeedAHoldOut(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} },
		learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut = 0 }))
	w.run(200, guardedHost, bbrFails)
	if r := w.retired("203.0.113.0/24", bbr); r != nil {
		t.Errorf("%+v", r)
	}
	for _, n := range w.e.nodes {
		if n.guard != nil {
			t.Errorf("%v has a guard", n.key.path())
		}
	}
}

func TestRetirementEndsAndGrowsIfRepeated(t *testing.T) {
	w := guardedWorld(t)
	const path = "203.0.113.0/24"
	length := func() time.Duration {
		t.Helper()
		w.run(200, guardedHost, bbrFails)
		r := w.retired(path, bbr)
		if r == nil {
			t.Fatal("not retired")
		}
		return r.Until.Sub(r.Since)
	}
	wait := func(d time.Duration) {
		w.now += int64(d)
		w.e.Tick(w.now)
	}
	first := length()
	wait(first)
	if w.retired(path, bbr) != nil {
		t.Error("still shown as retired")
	}
	second := length()
	wait(second)
	third := length()
	if first != 10*time.Minute || second != 2*first || third != 2*second {
		t.Errorf("away for %v, %v, %v", first, second, third)
	}
	wait(third + third) // as long without a retirement as the last one lasted
	if again := length(); again != first {
		t.Errorf("away for %v though it was long ago, want %v", again, first)
	}
	wait(24 * time.Hour)
	if got := w.run(60, guardedHost, allAlike); count(got, bbr) == 0 {
		t.Error("it never came back")
	}
}

func TestRetirementsOutliveTheProcess(t *testing.T) {
	w := guardedWorld(t)
	w.run(200, guardedHost, bbrFails)
	kept, _ := memories(t, w.e, nil)
	for i := range kept {
		for k := range kept[i].Retired {
			kept[i].Retired[k].Until = start + 2*3600*second // revive is an hour later
		}
	}
	v, _ := revive(t, func(o *Options) { o.Learner = evenly{learn.DefaultThompson()} }, kept, w.e.Rules()...)
	if r := v.retired("203.0.113.0/24", bbr); r == nil || r.Guard != "reward-collapse" {
		t.Errorf("%+v", r)
	}
	if got := v.run(30, guardedHost, bbrFails); count(got, bbr) != 0 {
		t.Errorf("used on %d connections", count(got, bbr))
	}
}

// A retirement from the time when a path had one host stays with that host when others connect.
func TestRetirementsStayWithTheHost(t *testing.T) {
	w := guardedWorld(t)
	w.run(200, guardedHost, bbrFails)
	w.run(3, ip("203.0.113.10"), allAlike)
	if w.retired("203.0.113.9/32", bbr) == nil || w.retired("203.0.113.0/24", bbr) != nil {
		t.Error("the retirement is not the host's")
	}
	if got := w.run(30, ip("203.0.113.77"), allAlike); count(got, bbr) == 0 {
		t.Error("another host goes without")
	}
}
