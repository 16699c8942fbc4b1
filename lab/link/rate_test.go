package link

import (
	"fmt"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// fullPayload is the UDP payload of a full frame, in bytes.
const fullPayload = 1472

// A queue with room for a whole burst sends it at no more than the rate.
func TestRootRate(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		d := shape(t, a, b, Spec{}, backend)
		for _, mbit := range []float64{20, 100} {
			all := halfASecond(t, a, b, d, mbit)
			// tbf's bucket holds 10 ms at the rate.
			between(t, fmt.Sprintf("half a second at %.0f Mbit/s", mbit), took(all), 480*ms, 500*ms+loose)
		}
		sane(t, d)
	})
}

func TestMeasureRate(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		onBackends(t, func(t *testing.T, backend Backend) {
			a, b := newPair(t)
			d := shape(t, a, b, Spec{}, backend)
			for _, mbit := range []float64{20, 100} {
				all := halfASecond(t, a, b, d, mbit)
				testenv.Between(m, fmt.Sprintf("%s: Mbit/s", backend), bitsPerSecond(all)/1e6, 0.98*mbit, 1.02*mbit)
			}
		})
	})
}

// halfASecond sends as many full frames as a rate carries in half a second.
func halfASecond(t *testing.T, a, b *topology.End, d *Direction, mbit float64) []flight {
	t.Helper()
	must(t, d.Set(Spec{Rate: uint64(mbit * 1e6), Queue: Queue{Packets: 60_000}}))
	return streamAll(t, a, b, int(0.5*mbit*1e6/8/minFrame), fullPayload, 0, nil)
}

// took is the time from the first write of a stream to its last arrival.
func took(all []flight) time.Duration {
	return all[len(all)-1].at.Sub(all[0].at) + all[0].delay
}

// Each segment of an aggregate counts with its own headers.
func TestRootRateOfAggregates(t *testing.T) {
	a, b := newPair(t)
	s := Spec{Rate: 20e6, Queue: Queue{Bytes: 2e6}, Offload: true}
	d := shape(t, a, b, s, Emulator)
	const count, segments = 40, 20
	all := aggregates(t, a, b, count*segments, fullPayload, segments)
	must(t, complete(all, count*segments))
	if n := counters(t, d).Aggregates; n != count {
		t.Errorf("%d aggregates were seen, want %d", n, count)
	}
	bits := float64(count * segments * 8 * minFrame)
	between(t, "40 aggregates", took(all), time.Duration(0.97*bits/float64(s.Rate)*1e9), time.Duration(bits/float64(s.Rate)*1e9)+loose)
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

// A slow rate applies to the first packets too.
func TestRootSlowRate(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		shape(t, a, b, Spec{Rate: 100e3}, backend)
		// 121 ms each, less what tbf's bucket holds beyond one frame
		between(t, "4 packets", took(streamAll(t, a, b, 4, fullPayload, 0, nil)), 345*ms, 490*ms+loose)
	})
}

// queues are limits, each with the number of packets of 1000 bytes that it has room for.
var queues = []struct {
	queue Queue
	room  int
}{
	{Queue{Packets: 100}, 100},
	{Queue{Bytes: 150_500}, 150},
	{Queue{Bytes: 150_500, Packets: 50}, 50},
}

const each = 2 * ms // time of a packet of 1000 bytes at the rate of these tests

// A burst that is longer than the queue fills it: packets that have room arrive, the
// last after all of the others, and the rest are counted as overflowed.
func TestRootQueue(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		d := shape(t, a, b, Spec{}, backend)
		const payload, sent = 958, 1500 // a sender that takes more than 3 s to send them would not fill the queue
		for _, c := range queues {
			s := Spec{Rate: uint64(8000 / each.Seconds()), Queue: c.queue}
			if backend.supports(s) != nil {
				continue
			}
			must(t, d.Set(s))
			before, drops := counters(t, d), backlogDrops(t)
			all := stream(t, a, b, sent, payload, 0, nil)
			n := counters(t, d).Sub(before)
			// The hosts send some packets of their own.
			lost := sent - len(all)
			if over := int(n.Overflowed); over < lost-drops() || over > lost+5 || over == 0 {
				t.Errorf("%+v: %d of %d arrived, counted as %+v", c.queue, len(all), sent, n)
			}
			if len(all) < c.room {
				t.Errorf("%+v: %d packets passed, want %d at least", c.queue, len(all), c.room)
			}
			if most := uint64(c.room) * 1000; backend == Emulator && (n.QueueMax < most-1000 || n.QueueMax > 150_500) {
				t.Errorf("%+v: counted as %+v, want at most %d bytes in the queue", c.queue, n, most)
			}
			// The bucket of tbf has room for some packets too.
			if longest, want := delays(all)[len(all)-1], time.Duration(c.room)*each; longest < want-10*each {
				t.Errorf("%+v: the longest wait was %s, want %s", c.queue, longest, want)
			}
		}
		sane(t, d)
	})
}

// Of a burst arrives what had room in the queue and what left during the burst.
func TestMeasureQueue(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		onBackends(t, func(t *testing.T, backend Backend) {
			a, b := newPair(t)
			slack := slack(t)
			d := shape(t, a, b, Spec{}, backend)
			for _, c := range queues {
				s := Spec{Rate: uint64(8000 / each.Seconds()), Queue: c.queue}
				if backend.supports(s) != nil {
					continue
				}
				must(t, d.Set(s))
				all := stream(t, a, b, 400, 958, 0, nil)
				what := fmt.Sprintf("%s, %+v: ", backend, c.queue)
				// The bucket of tbf has room for some packets too.
				testenv.Between(m, what+"passed", len(all), c.room, c.room+15+int(slack/ms))
				took, want := all[len(all)-1].at.Sub(all[0].at), time.Duration(len(all)-1)*each
				testenv.Between(m, what+"took, of what they are to", float64(took)/float64(want), 0.93, 1.03)
			}
		})
	})
}

// A full queue of 1000 packets at 20 Mbit/s is 606 ms long, and so is one of 50 packets
// at 1 Mbit/s, which emulated processors are fast enough to fill.
func TestRootFullQueue(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		s := Spec{Rate: 20e6, Queue: Queue{Packets: 1000}}
		slack := slack(t)
		if slack == emulated {
			s = Spec{Rate: 1e6, Queue: Queue{Packets: 50}}
		}
		d := shape(t, a, b, s, backend)
		longest := delays(stream(t, a, b, int(s.Queue.Packets)*3, fullPayload, 0, nil))
		if c := counters(t, d); c.Overflowed == 0 {
			t.Errorf("the queue was never full: %+v", c)
		}
		between(t, "the longest wait", longest[len(longest)-1], s.QueueDelay()-15*ms-slack, s.QueueDelay()+loose)
		sane(t, d)
	})
}

// ceMarks reads from /proc/net/netstat how many packets with congestion marks the host
// received over TCP or UDP.
func ceMarks(t *testing.T, h *topology.Host) (n int) {
	t.Helper()
	out, err := h.Run("cat", "/proc/self/net/netstat")
	must(t, err)
	n, err = testenv.NetCounter(out, "InCEPkts")
	must(t, err)
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
		time.Sleep(2 * quiet) // until the queue is empty
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
