package engine

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// A crowd shares a link that it fills: each of its connections gets its part by how much
// its arm takes from the others.
type crowd struct {
	*world
	to   netip.Addr
	live []*transfer
	n    map[tcp.CC]int // connections ended
}

type transfer struct {
	*tcp.Sample
	left  float64 // bytes
	began int64
}

const (
	object  = 1e6  // bytes of a connection
	linkBps = 10e6 // bytes/s
)

// run has size connections at a time for a while. bbr takes four times what cubic
// does from the same queue, and wastes an eighth of the link on retransmits.
func (c *crowd) run(size int, d time.Duration) {
	const step = 20 * time.Millisecond
	for range d / step {
		for len(c.live) < size {
			s := c.connect(c.to, goods{cubic: 1, bbr: 1})
			c.live = append(c.live, &transfer{s, object * (0.5 + c.rng.Float64()), c.now})
		}
		want, wasted := 0.0, 0.0
		for _, t := range c.live {
			want += greed(t.CC)
			if t.CC == bbr {
				wasted += greed(t.CC) / 8
			}
		}
		c.now += int64(step)
		c.live = slices.DeleteFunc(c.live, func(t *transfer) bool {
			t.left -= linkBps * step.Seconds() * (1 - wasted/want) * greed(t.CC) / want
			if t.left > 0 {
				return false
			}
			c.end(t)
			return true
		})
		c.e.Tick(c.now)
	}
}

func (c *crowd) end(t *transfer) {
	t.At, t.Duration = c.now, time.Duration(c.now-t.began)
	t.Busy, t.BytesAcked = t.Duration, object
	t.DataSegsOut = uint32(t.BytesAcked / mss)
	t.SRTT = 2 * t.MinRTT // the queue
	c.e.Observe(t.Sample)
	c.n[t.CC]++
}

func greed(cc tcp.CC) float64 {
	if cc == bbr {
		return 4
	}
	return 1
}

// An arm that takes from the connections of the slices around is not better for the
// path: in a crowd, slices are long enough to tell.
func TestWhatACrowdTakesFromItselfIsNoGain(t *testing.T) {
	w := newWorld(t, nil)
	w.e.SetOffered(offer(cubic, bbr), cubic)
	c := &crowd{world: w, to: ip("203.0.113.9"), n: map[tcp.CC]int{}}
	c.run(20, 2*time.Hour)
	if c.n[bbr] == 0 {
		t.Fatal("bbr was not tried")
	}
	clear(c.n)
	c.run(20, time.Hour)
	if share := float64(c.n[bbr]) / float64(c.n[bbr]+c.n[cubic]); share > 0.03 {
		t.Errorf("%.2f of the connections have bbr", share)
	}
	t.Log(c.n, w.path("203.0.113.0/24").Slice)
}
