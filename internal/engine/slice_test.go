package engine

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestSliceFollowsLength(t *testing.T) {
	for _, c := range []struct {
		each []time.Duration
		want time.Duration
	}{
		{nil, 1 << firstSlice},
		{[]time.Duration{time.Millisecond, time.Millisecond}, 1 << firstSlice}, // too few
		{slices.Repeat([]time.Duration{time.Millisecond}, 5), 1 << leastSlice},
		{slices.Repeat([]time.Duration{250 * time.Millisecond}, 5), 1 << 28},
		{slices.Repeat([]time.Duration{3 * time.Second}, 5), 1 << 31},
		{slices.Repeat([]time.Duration{time.Hour}, 5), 1 << longestSlice},
		{[]time.Duration{time.Second, time.Second, 1300 * time.Millisecond, 900 * time.Millisecond, time.Second}, 1 << 30},
		{[]time.Duration{time.Second, time.Second, time.Second, time.Second, 64 * time.Second, 64 * time.Second}, 1 << 32},
	} {
		w := newWorld(t, nil)
		to := ip("203.0.113.9")
		for _, d := range c.each {
			w.run(1, to, clean, func(s *tcp.Sample) { s.Duration = d })
		}
		n := w.e.rules.states[0].root
		if p := w.e.nodes[keyOf(n.key.class, 0, to, 24)]; p != nil {
			n = p
		}
		if got := time.Duration(1) << n.sliceShift(); got != c.want {
			t.Errorf("connections of %v: slices of %v, want %v", c.each, got, c.want)
		}
	}
}

// An interval sample is of a live connection: it does not show how long connections last.
func TestSliceIgnoresLiveConnections(t *testing.T) {
	w := newWorld(t, nil)
	to := ip("203.0.113.9")
	w.run(5, to, clean)
	w.run(9, to, clean, func(s *tcp.Sample) { s.Kind, s.Duration = tcp.KindInterval, time.Hour })
	if got := w.path("203.0.113.0/24").Slice; got != 1<<30 {
		t.Errorf("slices of %v, want 1.07 s", got)
	}
}

// share divides a link of 8 Gbit/s among four connections that begin together. reno takes
// three times as much as cubic; among reno connections only, each gets the same as others
// would, with 3 % retransmits.
func (w *world) share(to netip.Addr) (flooding int) {
	var batch []*tcp.Sample
	total := 0.0
	demand := func(c tcp.CC) float64 {
		if c == reno {
			return 3
		}
		return 1
	}
	for range 4 {
		s := w.connect(to, goods{cubic: 1, reno: 1})
		batch = append(batch, s)
		total += demand(s.CC)
	}
	const lasting = 1 << leastSlice
	w.now += lasting
	for _, s := range batch {
		s.At, s.Duration, s.Busy = w.now, lasting, lasting
		s.BytesAcked = uint64(1e9 * demand(s.CC) / total * s.Busy.Seconds())
		s.DataSegsOut = uint32(s.BytesAcked / mss)
		if s.CC == reno {
			s.Retrans = s.DataSegsOut / 33
			flooding++
		}
		w.e.Observe(s)
	}
	w.e.Tick(w.now)
	return flooding
}

// If an arm is drawn for each connection, the arm that takes from the others looks best, and
// all connections get it. If it is drawn for a slice of time, it does not look better.
func TestArmThatTakesFromOthersIsNotBest(t *testing.T) {
	flooding := func(alone bool) (last int) {
		w := newWorld(t, nil)
		w.e.SetOffered(offer(cubic, reno), tcp.CC{})
		w.alone = alone
		for range 300 {
			w.share(ip("203.0.113.9"))
		}
		for range 100 {
			last += w.share(ip("203.0.113.9"))
		}
		return last
	}
	if n := flooding(false); n > 40 {
		t.Errorf("%d of the last 400 connections flood the link, want next to none", n)
	}
	if n := flooding(true); n < 360 {
		t.Errorf("drawn one by one, %d of the last 400 flood the link: this test does not show what slices are for", n)
	}
}

// Shares do not change within a slice, so that all of its connections get one arm.
func TestSharesStayWithinSlice(t *testing.T) {
	w := newWorld(t, nil)
	w.gap = second / 50
	to := ip("203.0.113.9")
	w.run(20, to, lossy)
	row := func() path.Policy {
		en, _ := w.sink.lookup(w.sink.table.Classes[0].ID, 0, to)
		return en.Policy
	}
	changes, last, slice := 0, row(), w.now>>row().Slice
	for range 1000 {
		w.run(1, to, lossy)
		if p := row(); p != last {
			changes++
			if now := w.now >> last.Slice; now == slice {
				t.Errorf("shares change twice in slice %d", now)
			} else {
				slice = now
			}
			last = p
		}
	}
	if changes == 0 {
		t.Error("shares never change")
	}
}

// Urgent decisions do not wait for the end of the slice: Settle, a change of the offered
// arms, a mark, a retirement.
func TestUrgentDecisionsDoNotWaitForTheSlice(t *testing.T) {
	to := ip("203.0.113.9")
	for name, act := range map[string]func(*world){
		"settle": func(w *world) { w.e.Settle(w.now) },
		"offer":  func(w *world) { w.e.SetOffered(offer(cubic, bbr), tcp.CC{}) },
		"mark": func(w *world) {
			for range provenMarks {
				s := w.connect(to, lossy)
				s.At, s.Flags, s.DeliveredCE = w.now, s.Flags|tcp.FlagECN, 5
				w.e.Observe(s)
			}
		},
		"retirement": func(w *world) {
			w.e.mu.Lock()
			defer w.e.mu.Unlock()
			w.e.retire(w.e.nodes[keyOf(w.e.rules.states[0].root.key.class, 0, to, 24)], reno, guard.RetransmitStorm, "test", w.now)
		},
	} {
		w := newWorld(t, nil)
		w.e.SetOffered(offer(cubic, bbr, reno, dctcp), tcp.CC{})
		w.run(6, to, lossy) // slices of 1.07 s
		w.now = w.now>>30<<30 + 1<<30
		w.run(1, to, lossy, func(s *tcp.Sample) { w.now -= w.gap - 1 }) // the decision of this slice
		writes := w.sink.writes
		w.now += second / 10
		s := w.connect(to, goods{cubic: 9, bbr: 1, reno: 9})
		s.At = w.now
		w.e.Observe(s)
		w.now += second / 10
		w.e.Tick(w.now)
		if w.sink.writes != writes {
			t.Fatalf("%s: an outcome is acted on within the slice", name)
		}
		act(w)
		w.now++
		w.e.Tick(w.now)
		if w.sink.writes == writes {
			t.Errorf("%s: nothing was written before the slice was over", name)
		}
	}
}

// On a busy path, every second slice has so many hold-out connections that earlier evidence
// fades. The evidence of several slices must still add up.
func TestGuardsOfBusyPaths(t *testing.T) {
	w := newWorld(t, nil)
	to := ip("203.0.113.9")
	bad := goods{cubic: 100, bbr: 100, reno: 5}
	for range 12 { // slices as long as with many connections at a time
		const slice = firstSlice + manyShift
		w.now = w.now>>slice<<slice + 1<<slice + 2<<firstSlice
		for i := range 400 {
			s := w.connect(to, bad)
			s.Arm, s.Flags = bbr, s.Flags&^tcp.FlagHoldOut
			switch {
			case i%10 == 0:
				s.Arm, s.Flags = tcp.CC{}, s.Flags|tcp.FlagHoldOut
				s.CC = cubic
			case i%20 == 5:
				s.Arm = reno
			}
			w.transfer(s, bad)
			w.now += 1_000_000
			s.At = w.now
			w.e.Observe(s)
		}
		w.e.Tick(w.now)
	}
	if p := w.path("203.0.113.0/24"); p.arm(reno).Retired == nil {
		t.Errorf("an arm with a twentieth of the others' goodput is still one: %+v", p.arm(reno))
	}
}

// A deferred decision that is not urgent still waits in queue.later after its slice: a
// thousand paths whose slices end together are not decided on in one tick.
func TestDecisionsThatAreNotUrgentWaitAfterTheSlice(t *testing.T) {
	w := newWorld(t, nil)
	w.run(3, ip("203.0.113.9"), goods{cubic: 100, bbr: 100, reno: 100})
	e := w.e
	n := e.cache.byUse.first
	for _, c := range []struct {
		defers         []bool
		waits, decided bool
	}{
		{[]bool{true}, true, false},
		{[]bool{true, false}, false, true},
		{[]bool{false, true}, false, true},
	} {
		n.dirty, n.queued, e.queue.dirty, e.queue.later = false, false, nil, nil
		n.policy.slice = leastSlice
		for _, lowPriority := range c.defers {
			e.queue.deferNode(n, lowPriority)
		}
		e.queue.release(w.now, true)
		if n.queued != c.waits || n.dirty != c.decided || n.deferred {
			t.Errorf("deferred %v: queued %t, to be decided on %t, deferred %t", c.defers, n.queued, n.dirty, n.deferred)
		}
	}
}

// Whatever their lengths, sequential connections count as one at a time, and nine concurrent
// ones as many.
func TestHowManyAtATime(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var alone lifetimes
	now := uint32(0)
	for n := range 200 {
		ms := uint32(20)
		if n%4 == 0 {
			ms = 2000
		}
		now += ms
		alone.add(time.Duration(ms)*time.Millisecond, now, 1, ofPath)
	}
	if n := alone.atOnce(); n < 0.99 || n > 1.01 {
		t.Errorf("one after the other: %.2f at a time", n)
	}
	low := 0
	var nine lifetimes
	var lasts, ends [9]float64 // ms
	for n := range 2000 {
		i := slices.Index(ends[:], slices.Min(ends[:]))
		nine.add(time.Duration(lasts[i]*1e6), uint32(ends[i]), 1, ofPath)
		if n > 100 && nine.atOnce() < 6 {
			low++
		}
		lasts[i] = 500 * math.Exp(rng.NormFloat64())
		ends[i] += lasts[i]
	}
	if low > 400 {
		t.Errorf("nine at a time: fewer than six in %d of 1900", low)
	}
}

// Connections that come one at a time count as one at a time, also after a pause in which the milliseconds of their ends
// have passed half of 32 bits, and after the clock was set back.
func TestOverlapAfterALongPause(t *testing.T) {
	const day = 24 * 3600 * 1000
	for name, pause := range map[string]int64{"ten days": 10 * day, "30 days": 30 * day, "60 days": 60 * day, "set back by 8 hours": -day / 3} {
		var l lifetimes
		ended := start / int64(time.Millisecond)
		for i := range 3 * lifeMemory {
			if ended += 1500; i == lifeMemory {
				ended += pause
			}
			l.add(time.Second, uint32(ended), 1, ofPath)
			if l.many || i > 1 && l.atOnce() > 1.2 {
				t.Errorf("%s: connection %d: %.1f at once", name, i, l.atOnce())
				break
			}
		}
	}
}
