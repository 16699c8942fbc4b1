package engine

import (
	"cmp"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// overlapping are connections that together fill a link. The share of each depends on
// how much its arm takes from the others.
type overlapping struct {
	*world
	to    netip.Addr
	live  []*transfer
	n     map[tcp.CC]int // connections ended
	lossy bool           // packets are lost at random, so that the queue is short
	// aggressive takes four times as much as others from the same queue, and wastes an eighth of the
	// link on retransmits; zero: bbr.
	aggressive tcp.CC
	// takes is what a connection takes of the link, relative to the others, and which part of that it
	// wastes; nil: as aggressive says.
	takes    func(*transfer) (share, wasted float64)
	step     time.Duration // 0: 20 ms
	slowOnes float64       // share of the connections that are transfer.slow
	// The rate of the link varies by the factor exp(varies*level) in the course of minutes; the standard
	// deviation of level is 1.
	varies, level float64
}

type transfer struct {
	*tcp.Sample
	size  float64 // bytes
	left  float64 // bytes not sent yet
	began int64
	slow  bool // one of the slow ones of a test
}

// run keeps size connections live for d.
func (c *overlapping) run(size int, d time.Duration) {
	const object = 1e6 // bytes of a connection, in the mean
	step := cmp.Or(c.step, 20*time.Millisecond)
	for range d / step {
		for len(c.live) < size {
			s := c.connect(c.to, goods{cubic: 1, bbr: 1})
			size := object * math.Exp(0.6*c.rng.NormFloat64()-0.18)
			c.live = append(c.live, &transfer{Sample: s, size: size, left: size, began: c.now, slow: c.slowOnes > 0 && c.rng.Float64() < c.slowOnes})
		}
		want, wasted := 0.0, 0.0
		for _, t := range c.live {
			share, part := c.demand(t)
			want += share
			wasted += share * part
		}
		c.now += int64(step)
		rate := c.linkRate(step)
		c.live = slices.DeleteFunc(c.live, func(t *transfer) bool {
			share, _ := c.demand(t)
			t.left -= rate * step.Seconds() * (1 - wasted/want) * share / want
			if t.left > 0 {
				return false
			}
			c.end(t)
			return true
		})
		c.e.Tick(c.now)
	}
}

func (c *overlapping) end(t *transfer) {
	t.At, t.Duration = c.now, time.Duration(c.now-t.began)
	t.Busy, t.BytesAcked = t.Duration, uint64(t.size)
	t.DataSegsOut = uint32(t.BytesAcked / mss)
	t.SRTT = 2 * t.MinRTT // the queue
	if c.lossy {
		t.SRTT = t.MinRTT + t.MinRTT/50 + c.rng.Uint32N(t.MinRTT/10)
		t.Retrans = c.rng.Uint32N(14)
	}
	c.e.Observe(t.Sample)
	c.n[t.CC]++
}

// demand is what a connection takes of the link, relative to the others, and which part of that it wastes.
func (c *overlapping) demand(t *transfer) (share, wasted float64) {
	switch {
	case c.takes != nil:
		return c.takes(t)
	case t.CC == c.mostAggressive():
		return 4, 1. / 8
	}
	return 1, 0
}

// linkRate is the rate of the link in bytes/s, after another step.
func (c *overlapping) linkRate(step time.Duration) float64 {
	const linkBps, minutes = 10e6, 120 // bytes/s; s
	if c.varies == 0 {
		return linkBps
	}
	keep := math.Exp(-step.Seconds() / minutes)
	c.level = keep*c.level + math.Sqrt(1-keep*keep)*c.rng.NormFloat64()
	return linkBps * math.Exp(c.varies*c.level)
}

func (c *overlapping) mostAggressive() tcp.CC {
	if c.aggressive == (tcp.CC{}) {
		return bbr
	}
	return c.aggressive
}

// An arm that takes from the connections of the neighbouring slices is not better for
// the path. When many connections overlap, slices are long enough to see that.
func TestNoGainFromOverlappingConnections(t *testing.T) {
	w := newWorld(t, nil)
	w.e.SetOffered(offer(cubic, bbr), cubic)
	c := &overlapping{world: w, to: ip("203.0.113.9"), n: map[tcp.CC]int{}}
	c.run(20, 10*time.Hour)
	p := w.path("203.0.113.0/24")
	if a := p.arm(bbr); a.Count < 100 {
		t.Fatalf("bbr was tried %d times", a.Count)
	}
	clear(c.n)
	c.run(20, time.Hour)
	if share := float64(c.n[bbr]) / float64(c.n[bbr]+c.n[cubic]); share > 0.03 {
		t.Errorf("%.2f of the connections have bbr", share)
	}
	n := w.e.nodes[keyOf(w.e.rules.states[0].root.key.class, 0, c.to, 24)]
	if slices := uint64(11 * time.Hour / p.Slice); n.belief.Count > slices*11/10 { // the first slices are shorter
		t.Errorf("%d observations in %d slices of %v", n.belief.Count, slices, p.Slice)
	}
	t.Log(c.n, p.Slice, n.belief.Count)
}

// lastArm gives all connections to the last arm, as if that was shown to be better.
type lastArm struct{ learn.Learner }

func (lastArm) Weights(w []float64, arms []tcp.CC, _ int, _, _ *learn.Belief, _ int64) int {
	clear(w)
	w[len(arms)-1] = 1
	return len(arms) - 1
}

// A default that takes from the connections beside it looks better in single connections that
// are held out, and is worse in whole slices of time. If many connections overlap, only slices are held
// out, and the better arm is not left.
func TestOnlySlicesAreHeldOutAmongOverlappingConnections(t *testing.T) {
	for i, holdOut := range []float64{0.02, 0.02, 0.02, 0.05, 0.1} {
		w := newWorld(t, func(o *Options) { o.Learner = lastArm{learn.DefaultThompson()} },
			learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut, r.Learn.Arms = holdOut, []tcp.CC{bbr} }))
		w.e.slices = true // lastArm hides that its learner uses slices
		w.now += int64(i) * 977 * second
		w.e.SetOffered(offer(cubic, bbr), cubic)
		w.e.Settle(w.now)
		c := &overlapping{world: w, to: ip("203.0.113.9"), n: map[tcp.CC]int{}, aggressive: cubic}
		for range 40 {
			c.run(20, 3*time.Minute)
			p := w.path("203.0.113.0/24")
			if n := c.n[cubic] + c.n[bbr]; n > 2000 && p.HoldOut.Share != p.HoldOut.Slices {
				t.Fatalf("hold-out %g: single connections are held out: %+v", holdOut, p.HoldOut)
			}
			if b := p.LeftToDefault; b != nil {
				t.Errorf("hold-out %g: left to the default: %s", holdOut, b.Why)
				break
			}
		}
	}
}

// The first connections that end on a path do not look like many overlapping ones, and
// random losses would open a search.
func TestOverlapIsKnownBeforeASearchOpens(t *testing.T) {
	others, all := 0, 0
	for seed := range uint64(60) {
		w := newWorld(t, nil)
		w.rng = rand.New(rand.NewPCG(seed, 77))
		w.now += w.rng.Int64N(int64(20 * time.Second))
		w.e.SetOffered(offer(cubic, bbr, reno), cubic)
		c := &overlapping{world: w, to: ip("203.0.113.9"), n: map[tcp.CC]int{}, lossy: true}
		c.run(20, 36*time.Second)
		for cc, n := range c.n {
			if all += n; cc != cubic {
				others += n
			}
		}
	}
	if all < 10_000 || others > all/100 {
		t.Errorf("%d of the first %d connections of 60 paths do not have the default", others, all)
	}
}

// The number of overlapping connections is found by Little's law, with pauses, several
// hosts, and samples that stand for more than one connection.
func TestManyAtATime(t *testing.T) {
	const each = time.Second
	for _, c := range []struct {
		name   string
		size   int           // connections at a time
		pause  time.Duration // after every 60
		change func(*tcp.Sample)
		want   bool
	}{
		{"one after the other", 1, 0, nil, false},
		{"four", 4, 0, nil, false},
		{"twenty", 20, 0, nil, true},
		{"twenty with pauses", 20, time.Minute, nil, true},
		{"one with pauses", 1, time.Minute, nil, false},
		{"two, each of which stands for ten", 2, 0, func(s *tcp.Sample) { s.StandsFor = 10 }, true},
		{"ends of those that were sampled before", 20, 0, func(s *tcp.Sample) { s.Flags |= tcp.FlagLater }, false},
	} {
		for _, hosts := range []byte{1, 5} {
			w := newWorld(t, nil)
			for i := range 200 {
				w.now += int64(each) / int64(c.size)
				if i%60 == 59 {
					w.now += int64(c.pause)
				}
				to := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)%hosts + 1})
				s := w.connect(to, clean)
				s.At, s.Duration = w.now, each
				if c.change != nil {
					c.change(s)
				}
				w.e.Observe(s)
				w.e.Tick(w.now)
			}
			n := w.e.nodes[keyOf(w.e.rules.states[0].root.key.class, 0, ip("203.0.113.1"), 24)]
			if hosts > 1 {
				n = w.e.host(n, ip("203.0.113.1"))
			}
			if l := n.sliceLifetimes(); l.many != c.want {
				t.Errorf("%s, %d hosts: many %t, gap %.0f ms", c.name, hosts, l.many, l.gap)
			}
			want := time.Duration(1 << 30)
			if c.want {
				want <<= manyShift
			}
			if got := time.Duration(1) << n.sliceShift(); got != want {
				t.Errorf("%s, %d hosts: slices of %v, want %v", c.name, hosts, got, want)
			}
		}
	}
}
