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

// freeLink holds 413 packets, and its queue as many.
var freeLink = link.Spec{Rate: 100e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 625_000}}

// freedOn sends on a path, and checks that it counts as freed at some time, and that the window then grows by half soon.
// After a loss, the kernel's growth would take four seconds. It calls before with the transitions before that.
func freedOn(t *testing.T, p *path, ring *ringbuf.Reader, begun func(net.Conn), before func(cubicTransition)) (trace []cubicTransition) {
	t.Helper()
	var c net.Conn
	grew := false
	trace = cubicOn(t, p, ring, 10*time.Second, func(conn net.Conn) { c = conn; begun(conn) }, func(one cubicTransition) bool {
		if one.To != freed {
			before(one)
			return true
		}
		for until := time.Now().Add(time.Second); time.Now().Before(until) && !grew; time.Sleep(5 * time.Millisecond) {
			grew = tcpInfo(t, c).Snd_cwnd > 3*one.Cwnd/2
		}
		return false
	})
	if !grew {
		t.Errorf("%v: want that the path is freed, and that the window grows by half in the second after that", trace)
	}
	return trace
}

// TestRootCubicSpike: round trips that are longer for a while, as with another connection's burst in the queue, end slow start.
// When they are short again, the window grows.
func TestRootCubicSpike(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t)
	spike := freeLink
	spike.Delay += 10 * time.Millisecond
	must(t, p.there.Set(freeLink))
	begun := func(net.Conn) { // after the first round trip, several before slow start would end
		time.Sleep(80 * time.Millisecond)
		must(t, p.there.Set(spike))
	}
	trace := freedOn(t, p, ring, begun, func(cubicTransition) { must(t, p.there.Set(freeLink)) })
	if len(trace) == 0 || trace[0].Why != byDelay {
		t.Fatalf("%v: want that the delay ends slow start", trace)
	}
}

// TestRootCubicFreed: after a loss in the queue of a full link, of which most becomes free, the window grows again.
func TestRootCubicFreed(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t)
	full := link.Spec{Rate: 5e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 50_000}}
	must(t, p.there.Set(full))
	begun := func(c net.Conn) {
		loses(t, c)
		must(t, p.there.Set(freeLink))
	}
	freedOn(t, p, ring, begun, func(cubicTransition) {})
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

// TestRootCubicFreedEnds: when a freed path has a queue, the window is back on the curve before anything is lost.
func TestRootCubicFreedEnds(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t)
	must(t, p.there.Set(link.Spec{Rate: 5e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 50_000}}))
	begun := func(c net.Conn) {
		loses(t, c)
		must(t, p.there.Set(link.Spec{Rate: 40e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 500_000}}))
	}
	trace := cubicOn(t, p, ring, 10*time.Second, begun, func(one cubicTransition) bool { return one.From == slowStart || one.To == freed })
	if len(trace) < 2 || trace[len(trace)-1].From == slowStart {
		t.Fatalf("%v: want that the path is freed, and that this ends", trace)
	}
	if begin, end := trace[len(trace)-2], trace[len(trace)-1]; end.Retrans > begin.Retrans {
		t.Errorf("%d packets were sent again", end.Retrans-begin.Retrans)
	}
}

// TestRootCubicUndo: packets that were only late do not change what is known of the path: it counts as freed again. A change of the
// link may truly lose some; then another connection is tried.
func TestRootCubicUndo(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t)
	for range 4 {
		if freedAfterUndo(t, p, ring) {
			return
		}
	}
	t.Error("no path is freed again")
}

// freedAfterUndo sends on a path that is freed, then delivers some packets early, and reports whether it counts as freed again.
func freedAfterUndo(t *testing.T, p *path, ring *ringbuf.Reader) bool {
	t.Helper()
	must(t, p.there.Set(link.Spec{Rate: 5e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 50_000}}))
	var c net.Conn
	begun := func(conn net.Conn) {
		c = conn
		loses(t, c)
		must(t, p.there.Set(freeLink))
	}
	times := 0
	cubicOn(t, p, ring, 5*time.Second, begun, func(one cubicTransition) bool {
		if one.To != freed {
			return true
		}
		if times++; times == 1 {
			must(t, p.there.Set(link.Spec{Delay: freeLink.Delay, Reorder: 0.01}))
			eventually(t, func() error {
				if tcpInfo(t, c).Total_retrans == one.Retrans {
					return errors.New("nothing was sent again")
				}
				return nil
			})
			must(t, p.there.Set(freeLink))
		}
		return times < 2
	})
	return times == 2
}

// TestRootCubicRandomLoss: a loss without a queue does not tell that others fill the path: the window is then as the kernel's.
func TestRootCubicRandomLoss(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t)
	lossy := freeLink
	lossy.Loss = 0.03
	must(t, p.there.Set(lossy))
	trace := cubicOn(t, p, ring, 4*time.Second, func(c net.Conn) { loses(t, c) }, func(cubicTransition) bool { return true })
	if len(trace) != 1 {
		t.Errorf("%v: want only the end of slow start", trace)
	}
}

// loses waits until packets of a connection were lost.
func loses(t *testing.T, c net.Conn) {
	t.Helper()
	eventually(t, func() error {
		if tcpInfo(t, c).Total_retrans == 0 {
			return errors.New("nothing was lost")
		}
		return nil
	})
}

// TestRootCubicShortPath: a queue of a quarter of a short path, which is often there after a loss, is less than HyStart's 4 ms, and a
// queue: checkCubic does not allow that the path counts as freed then.
func TestRootCubicShortPath(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t) // the way back takes 10 ms
	must(t, p.there.Set(link.Spec{Rate: 20e6, Queue: link.Queue{Bytes: 21_000}}))
	cubicOn(t, p, ring, 4*time.Second, func(c net.Conn) { loses(t, c) }, func(cubicTransition) bool { return true })
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
