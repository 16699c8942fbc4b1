package cc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/tcpilot/tcpilot/lab/link"
)

// tracedCubic registers tcpilot_cubic with its trace on, for as long as the test runs.
func tracedCubic(t *testing.T, cc string) *ringbuf.Reader {
	t.Helper()
	requireControls(t)
	return traced(t, "tcpilot_cubic", cc, "cubic_transitions")
}

// cubicOn sends on a path for a time, or until each returns false. It calls begun once it sends, and each with every transition
// as it happens.
func cubicOn(t *testing.T, p *path, ring *ringbuf.Reader, lasts time.Duration, begun func(net.Conn), each func(cubicTransition) bool) (trace []cubicTransition) {
	t.Helper()
	c := p.connect(t, "test_trace")
	go func() { _, _ = io.Copy(c, content()) }()
	until := time.Now().Add(lasts)
	begun(c)
	port := uint16(c.LocalAddr().(*net.TCPAddr).Port)
	for time.Now().Before(until) {
		ring.SetDeadline(until)
		r, err := ring.Read()
		if err != nil {
			break // time is up
		}
		var raw traceCubicTransition
		must(t, binary.Read(bytes.NewReader(r.RawSample), binary.NativeEndian, &raw))
		one := raw.transition()
		if one.LocalPort != port {
			continue
		}
		t.Log(one)
		if trace = append(trace, one); !each(one) {
			break
		}
	}
	must(t, c.Close())
	for _, complaint := range checkCubic(trace) {
		t.Error(complaint)
	}
	return trace
}

// grewWhileFreed checks that the window grew by a factor at least while the path was freed, with nothing sent again.
func grewWhileFreed(t *testing.T, trace []cubicTransition, factor uint32) {
	t.Helper()
	if len(trace) < 2 || trace[len(trace)-1].From == slowStart {
		t.Fatalf("%v: want that the path is freed, and that this ends", trace)
	}
	begin, end := trace[len(trace)-2], trace[len(trace)-1]
	if end.Cwnd < factor*begin.Cwnd || end.Retrans > begin.Retrans {
		t.Errorf("the window grew from %d to %d packets, want %d times as much; %d packets were sent again", begin.Cwnd, end.Cwnd, factor, end.Retrans-begin.Retrans)
	}
}

// untilFreed ends with the first time on a freed path.
func untilFreed(one cubicTransition) bool { return one.From == slowStart || one.To == freed }

// TestRootCubicSpike: round trips that are longer for a while, as with another connection's burst in the queue, end slow start.
// When they are short again, the window grows until there is a queue.
func TestRootCubicSpike(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t)
	usual := link.Spec{Rate: 100e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 1_250_000}}
	spike := usual
	spike.Delay += 10 * time.Millisecond
	must(t, p.there.Set(usual))
	begun := func(net.Conn) { // after the first round trip, several before slow start would end
		time.Sleep(80 * time.Millisecond)
		must(t, p.there.Set(spike))
	}
	trace := cubicOn(t, p, ring, 5*time.Second, begun, func(one cubicTransition) bool {
		if one.From == slowStart {
			must(t, p.there.Set(usual))
		}
		return untilFreed(one)
	})
	if len(trace) == 0 || trace[0].Why != byDelay {
		t.Fatalf("%v: want that the delay ends slow start", trace)
	}
	grewWhileFreed(t, trace, 3)
}

// TestRootCubicFreed: after a loss in the queue of a full link, of which most becomes free, the window grows until there is a queue again.
// The kernel's cubic would take 15 s.
func TestRootCubicFreed(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t)
	full := link.Spec{Rate: 5e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 50_000}}
	free := link.Spec{Rate: 100e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 1_250_000}}
	must(t, p.there.Set(full))
	begun := func(c net.Conn) {
		eventually(t, func() error {
			if tcpInfo(t, c).Total_retrans == 0 {
				return errors.New("nothing was lost")
			}
			return nil
		})
		must(t, p.there.Set(free))
	}
	trace := cubicOn(t, p, ring, 20*time.Second, begun, func(one cubicTransition) bool {
		return untilFreed(one) || one.Retrans == 0 // before the loss
	})
	grewWhileFreed(t, trace, 5)
	if begin, end := trace[len(trace)-2], trace[len(trace)-1]; end.At-begin.At > 8e9 {
		t.Errorf("it took %.1f s", float64(end.At-begin.At)/1e9)
	}
}

// TestRootCubicQueue: a queue that stays ends slow start, and the path is not taken for freed.
func TestRootCubicQueue(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t)
	// ACKs arrive 6 ms apart: no train. The queue has room for 5 % per round trip.
	must(t, p.there.Set(link.Spec{Rate: 4e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 600_000}}))
	trace := cubicOn(t, p, ring, 3*time.Second, func(net.Conn) {}, func(cubicTransition) bool { return true })
	if len(trace) != 1 || trace[0].Why != byDelay || trace[0].Retrans > 0 {
		t.Errorf("%v: want the end of slow start by a delay, and nothing else", trace)
	}
}

// TestRootCubicShallow: a loss without a queue does not tell that others fill the path: the window is then as the kernel's.
func TestRootCubicShallow(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t)
	must(t, p.there.Set(link.Spec{Rate: 20e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 8_000}}))
	var lost uint32
	trace := cubicOn(t, p, ring, 4*time.Second, func(c net.Conn) {
		time.Sleep(3 * time.Second)
		lost = tcpInfo(t, c).Total_retrans
	}, func(cubicTransition) bool { return true })
	if len(trace) != 1 || lost == 0 {
		t.Errorf("%v, %d packets sent again: want losses, and only the end of slow start", trace, lost)
	}
}

// TestRootCubicTrain: a train of ACKs for half a round trip ends slow start before there
// is a queue. A machine that pauses for 2 ms breaks the train, which emulated ones do in most
// connections. Therefore connections are made until three end in time, and each must have ended
// as the ACKs that it got demand.
func TestRootCubicTrain(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	acks := observeArrivals(t)
	p := newPath(t)
	must(t, p.there.Set(link.Spec{Rate: 30e6, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 300_000}}))
	bdp := 30e6 * 0.020 / 8 / 1514
	const connections, want = 60, 3
	inTime := 0
	for n := 0; n < connections && inTime < want; n++ {
		trace := cubicOn(t, p, ring, 3*time.Second, func(net.Conn) {}, func(cubicTransition) bool { return false })
		if len(trace) == 0 {
			t.Log("slow start did not end")
			continue
		}
		last := trace[len(trace)-1]
		for _, complaint := range checkTrain(trace, readArrivals(t, acks, last.LocalPort)) {
			t.Error(complaint)
		}
		if last.Why == byTrain && float64(last.Cwnd) <= 2*bdp && last.Retrans == 0 {
			inTime++
		}
	}
	if inTime < want {
		t.Errorf("slow start ended by a train of ACKs, before there was a queue, in %d of %d connections; the path holds %.0f packets", inTime, connections, bdp)
	}
}
