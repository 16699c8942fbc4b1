package link

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// fullPayload is what a full frame carries over UDP.
const fullPayload = 1472

// A queue that has room for all of a burst lets it go at the rate.
func TestRootRate(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		rates, tolerance := []float64{20, 100}, 0.02
		if slack(t) == emulated {
			rates, tolerance = []float64{20}, 0.1
		}
		d := shape(t, a, b, Spec{}, backend)
		for _, mbit := range rates {
			must(t, d.Set(Spec{Rate: uint64(mbit * 1e6), Queue: Queue{Packets: 60_000}}))
			count := int(0.5 * mbit * 1e6 / 8 / minFrame) // half a second
			testenv.Again(t, func() error {
				all := stream(t, a, b, count, fullPayload, 0, nil)
				if err := complete(all, count); err != nil {
					return err
				}
				if got := bitsPerSecond(all) / 1e6; !about(got, mbit, tolerance) {
					return fmt.Errorf("%.2f Mbit/s at %.0f", got, mbit)
				}
				return nil
			})
		}
		sane(t, d)
	})
}

// Of an aggregate each segment counts with its headers.
func TestRootRateOfAggregates(t *testing.T) {
	a, b := newPair(t)
	s := Spec{Rate: 20e6, Queue: Queue{Bytes: 2e6}, Offload: true}
	d := shape(t, a, b, s, Emulator)
	const segments = 20
	testenv.Again(t, func() error {
		before := counters(t, d)
		all := aggregates(t, a, b, 40*segments, fullPayload, segments)
		if err := complete(all, 40*segments); err != nil {
			return err
		}
		if n := counters(t, d).Sub(before).Aggregates; n != 40 {
			t.Errorf("%d aggregates were seen, want 40", n)
		}
		// What came with the first did not wait for its own end.
		if got := bitsPerSecond(all[segments-1:]); !about(got, 20e6, 0.03) && slack(t) < emulated {
			return fmt.Errorf("%.2f Mbit/s, want 20", got/1e6)
		}
		return nil
	})
	sane(t, d)

	s.Offload = false
	must(t, d.Set(s))
	before := counters(t, d)
	transfer(t, a, b, b.Addr4.Addr(), 200*ms)
	if c := counters(t, d).Sub(before); c.Aggregates != 0 || c.Passed == 0 {
		t.Errorf("with offloads off: %+v, want no aggregates", c)
	}
}

// With offloads off the datagrams of an aggregate arrive one by one.
func TestRootOffloadsOff(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		d := shape(t, a, b, Spec{Delay: ms}, backend)
		must(t, complete(aggregates(t, a, b, 400, fullPayload, 20), 400))
		if c := counters(t, d); c.Aggregates != 0 || c.Passed < 400 {
			t.Errorf("counted as %+v", c)
		}
		must(t, d.Set(Spec{Offload: true, Delay: ms}))
		must(t, complete(aggregates(t, a, b, 400, fullPayload, 20), 400))
		if c := counters(t, d); c.Aggregates != 20 {
			t.Errorf("with offloads: counted as %+v, want 20 aggregates", c)
		}
	})
}

// A slow rate is that of the first packets too.
func TestRootSlowRate(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		shape(t, a, b, Spec{Rate: 100e3}, backend)
		testenv.Again(t, func() error {
			all := stream(t, a, b, 4, fullPayload, 0, nil)
			if err := complete(all, 4); err != nil {
				return err
			}
			// 121 ms each, but for what tbf's bucket holds beside a frame
			return outside("3 packets", all[len(all)-1].at.Sub(all[0].at), 345*ms-slack(t), 370*ms+2*slack(t))
		})
	})
}

// A burst fills the queue: what arrives is what had room, and what left meanwhile;
// the last waits for all of it.
func TestRootQueue(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		slack := slack(t)
		d := shape(t, a, b, Spec{}, backend)
		const payload, sent = 958, 400 // frames of 1000 bytes
		each := ms
		if slack == emulated {
			each = 5 * ms
		}
		for _, c := range []struct {
			queue Queue
			room  int
		}{
			{Queue{Packets: 100}, 100},
			{Queue{Bytes: 150_500}, 150},
			{Queue{Bytes: 150_500, Packets: 50}, 50},
		} {
			s := Spec{Rate: uint64(8000 / each.Seconds()), Queue: c.queue}
			if backend.Supports(s) != nil {
				continue
			}
			must(t, d.Set(s))
			testenv.Again(t, func() error {
				before := counters(t, d)
				all := stream(t, a, b, sent, payload, 0, nil)
				n := counters(t, d).Sub(before)
				// The hosts send some packets of their own.
				if lost := uint64(sent - len(all)); n.Overflowed < lost || n.Overflowed > lost+5 {
					return fmt.Errorf("%+v: %d of %d arrived, counted as %+v", c.queue, len(all), sent, n)
				}
				if err := inOrder(all, slack); err != nil {
					return err
				}
				if most := uint64(c.room) * 1000; backend == Emulator && (n.QueueMax < most-1000 || n.QueueMax > 150_500) {
					return fmt.Errorf("%+v: counted as %+v, want at most %d bytes in the queue", c.queue, n, most)
				}
				// The bucket of tbf has room for some packets too.
				if meanwhile := 15 + int(slack/ms); len(all) < c.room || len(all) > c.room+meanwhile {
					return fmt.Errorf("%+v: %d packets passed, want %d and what left during the burst", c.queue, len(all), c.room)
				}
				took, want := all[len(all)-1].at.Sub(all[0].at), time.Duration(len(all)-1)*each
				return outside(fmt.Sprintf("%+v: %d packets", c.queue, len(all)), took, want-8*each-slack, want+2*ms+2*slack)
			})
		}
		sane(t, d)
	})
}

// A full queue of 1000 packets at 20 Mbit/s is 606 ms long, and so is one of 50 at
// 1 Mbit/s, which emulated processors fill.
func TestRootFullQueue(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		s := Spec{Rate: 20e6, Queue: Queue{Packets: 1000}}
		slack := slack(t)
		if slack == emulated {
			s = Spec{Rate: 1e6, Queue: Queue{Packets: 50}}
		}
		d := shape(t, a, b, s, backend)
		testenv.Again(t, func() error {
			longest := delays(stream(t, a, b, int(s.Queue.Packets)*3/2, fullPayload, 0, nil))
			return outside("the longest wait", longest[len(longest)-1], s.QueueDelay()-15*ms-slack, s.QueueDelay()+30*ms+2*slack)
		})
		sane(t, d)
	})
}

// ceMarks is how many packets with congestion marks the host received over TCP
// or UDP, by /proc/net/netstat.
func ceMarks(t *testing.T, h *topology.Host) (n int) {
	t.Helper()
	out, err := h.Run("cat", "/proc/self/net/netstat")
	must(t, err)
	var names []string
	for line := range strings.Lines(out) {
		values := strings.Fields(line)
		if values[0] != "IpExt:" {
			continue
		}
		if names == nil {
			names = values
			continue
		}
		for i, name := range names {
			if name == "InCEPkts" {
				fmt.Sscan(values[i], &n)
			}
		}
	}
	return n
}

func TestRootECN(t *testing.T) { onBackends(t, testECN) }

func testECN(t *testing.T, backend Backend) {
	a, b := newPair(t)
	s := Spec{Delay: 5 * ms, Rate: 20e6, Queue: Queue{Bytes: 500_000}, ECN: 30_000}
	d := shape(t, a, b, s, backend)
	for _, able := range []string{"1", "0"} {
		must(t, a.Host.SetSysctl("net.ipv4.tcp_ecn", able))
		must(t, b.Host.SetSysctl("net.ipv4.tcp_ecn", able))
		before, seen := counters(t, d), ceMarks(t, b.Host)
		transfer(t, a, b, b.Addr4.Addr(), time.Second)
		time.Sleep(2 * quiet) // for what still waits
		c := counters(t, d).Sub(before)
		seen = ceMarks(t, b.Host) - seen
		t.Logf("tcp_ecn %s: %d marks seen, %+v", able, seen, c)
		if able == "0" {
			if c.Marked != 0 || seen != 0 {
				t.Errorf("without ECN %d packets were marked, %d seen", c.Marked, seen)
			}
			continue
		}
		if c.Marked == 0 || uint64(seen) < c.Marked*9/10 || uint64(seen) > c.Marked {
			t.Errorf("%d packets were marked and %d seen", c.Marked, seen)
		}
		if c.Overflowed > 0 || c.QueueMax > 200_000 {
			t.Errorf("marks did not keep the queue short: %+v", c)
		}
	}
}
