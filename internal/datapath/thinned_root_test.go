package datapath

import (
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// ends waits until the ends of n connections are reported, thinned or missed, without
// those unshown. A connection whose end the kernel skipped may have been reported before,
// by a reset.
func (r *rig) ends(t *testing.T, n int) (c *Counters) {
	t.Helper()
	var last uint64
	eventually(t, func() (err error) {
		if c, err = r.Counters(); err != nil {
			return err
		}
		known := c.Samples + c.Thinned
		if known != last || known > uint64(2*n) || known+c.Missed < uint64(2*n-unshown(2*n)) {
			err = fmt.Errorf("%d samples, %d thinned, %d missed, want %d", c.Samples, c.Thinned, c.Missed, 2*n)
		}
		last = known
		return err
	})
	return c
}

// TestRootEndsThinned: above the configured rate a share of ends is reported, and the
// numbers that they stand for add up. Counters stay exact, and failed arms are all
// reported.
func TestRootEndsThinned(t *testing.T) {
	r := newRig(t)
	const (
		n    = 6000
		rate = 300 // a second
	)
	r.policy(t, arms(arm("cubic", 29491), arm("reno", 29491), arm("nosuchcc", 6554)))
	must(t, r.SetSettings(Settings{ReportRate: rate}))
	begun := time.Now()
	r.churnAll(t, n)
	took := time.Since(begun)
	c := r.ends(t, n)
	samples := r.count(t, int(c.Samples), each)

	sum, variance := sumOf(samples, func(s *tcp.Sample) bool { return !s.Has(tcp.FlagArmFailed) })
	var thinned, largest float64
	byArm := map[tcp.CC]float64{}
	for i := range samples {
		s := &samples[i]
		k := float64(s.StandsFor)
		byArm[s.Arm] += k
		if s.Has(tcp.FlagArmFailed) {
			if k != 1 {
				t.Errorf("a failed arm stands for %g", k)
			}
			continue
		}
		thinned++
		largest = max(largest, k)
	}
	failed := float64(c.Decisions["cc-failed"])
	if math.Abs(byArm[cc("nosuchcc")]-failed) > float64(unshown(2*n)) || failed < n/10 {
		t.Errorf("%g samples of a failed arm, it failed %g times", byArm[cc("nosuchcc")], failed)
	}
	ends := float64(c.Samples+c.Thinned) - byArm[cc("nosuchcc")]
	t.Logf("%d ends a second for %v: %g samples of %g ends, which stand for %g ± %.0f; by arm %v",
		int(2*n/took.Seconds()), took, thinned, ends, sum, math.Sqrt(variance), byArm)
	if math.Abs(sum-ends) > 4.5*math.Sqrt(variance) {
		t.Errorf("the samples stand for %g ends, there were %g", sum, ends)
	}
	if a, b := byArm[cc("cubic")], byArm[cc("reno")]; math.Abs(a-b) > 4.5*math.Sqrt(variance+ends) {
		t.Errorf("they stand for %g with cubic and %g with reno, want the same", a, b)
	}
	// The busier the host, the fewer are reported.
	if least := 2 * ends / took.Seconds() / rate; largest < least {
		t.Errorf("a sample stands for at most %g ends, want %g or more", largest, least)
	}
	// The first window is not thinned, and shares are whole numbers.
	if most := rate*took.Seconds()*1.5 + 600; thinned > most || thinned > ends/2 {
		t.Errorf("%g samples in %v for %d a second", thinned, took, rate)
	}
	class, err := r.ClassCounts([]uint32{1})
	must(t, err)
	if class[0] != (ClassCount{n, n}) || c.Decisions["policy"] != 2*n || uint64(ends) != c.Ends {
		t.Errorf("%+v connections of the class, %d with the policy, %d ends counted; want %d each, %d and %g",
			class[0], c.Decisions["policy"], c.Ends, n, 2*n, ends)
	}
}

// TestRootEndsNotThinned: all ends are reported as long as they are few, also soon after
// there were many.
func TestRootEndsNotThinned(t *testing.T) {
	r := newRig(t)
	r.policy(t, nil)
	// Below the rate of an emulated machine, and far above what follows: a window
	// that closes early has seen rate/16 ends, which must be more than a batch of
	// each CPU.
	must(t, r.SetSettings(Settings{ReportRate: 600}))
	r.churnAll(t, 1000)
	before := r.ends(t, 1000)
	if before.Thinned < 100 {
		t.Errorf("%d of 2000 ends thinned: too few to show anything", before.Thinned)
	}
	time.Sleep(200 * time.Millisecond) // more than a window
	for i := range 20 {
		c, s := r.pair(t, "127.0.0.1:0")
		isC, isS := ofConn(c), ofConn(s)
		closeAll(t, c, s)
		if i == 0 {
			time.Sleep(200 * time.Millisecond) // it closed the window: the burst's share ends with that
			continue
		}
		if a, b := r.find(t, "client", isC), r.find(t, "server", isS); a.StandsFor != 1 || b.StandsFor != 1 {
			t.Errorf("stand for %d and %d", a.StandsFor, b.StandsFor)
		}
		time.Sleep(30 * time.Millisecond)
	}
}

// TestRootEndsOfLongLived: a connection that the iterator has sampled is sampled at its
// end too, however many others end, and stands for itself only.
func TestRootEndsOfLongLived(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	must(t, r.SetSettings(Settings{ReportRate: 50, Interval: 10 * time.Millisecond}))
	var conns []net.Conn
	for range 5 {
		c, s := r.pair(t, "127.0.0.1:0")
		conns = append(conns, c, s)
		exchange(t, c, s, 10_000)
		exchange(t, s, c, 10_000)
	}
	r.churnAll(t, 500)
	time.Sleep(20 * time.Millisecond)
	r.walk(t, r.ns)
	var final []func(*tcp.Sample) bool
	for _, c := range conns {
		if s := r.find(t, "live connection", intervalOf(c)); s.StandsFor != 1 || s.Class != 1 || s.Arm != cc("reno") {
			t.Errorf("%+v", s)
		}
		final = append(final, ofConn(c))
	}
	r.churnAll(t, 500)
	for _, c := range conns {
		must(t, c.Close())
	}
	for _, is := range final {
		if s := r.find(t, "its end", is); s.StandsFor != 1 || s.Class != 1 {
			t.Errorf("%+v", s)
		}
	}
	if c, err := r.Counters(); err != nil || c.Thinned < 1000 {
		t.Errorf("%d ends thinned: too few to show anything; %v", c.Thinned, err)
	}
}
