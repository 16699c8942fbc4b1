package cc

import (
	"bytes"
	"encoding/binary"
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

// slowStartOn sends on a path until slow start is over. It calls begun once it sends, and
// each with every transition as it happens.
func slowStartOn(t *testing.T, p *path, ring *ringbuf.Reader, lasts time.Duration, begun func(), each func(cubicTransition)) (trace []cubicTransition) {
	t.Helper()
	c := p.connect(t, "test_trace")
	go func() { _, _ = io.Copy(c, content()) }()
	begun()
	port := uint16(c.LocalAddr().(*net.TCPAddr).Port)
	for until := time.Now().Add(lasts); time.Now().Before(until); {
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
		trace = append(trace, one)
		if one.To >= reno {
			break
		}
		each(one)
	}
	must(t, c.Close())
	for _, complaint := range checkSlowStart(trace) {
		t.Error(complaint)
	}
	return trace
}

// spikeOn sends on a path whose round trips become longer after some, by a time, until conservative slow start begins.
func spikeOn(t *testing.T, ring *ringbuf.Reader, longer time.Duration) (trace []cubicTransition) {
	t.Helper()
	p := newPath(t)
	usual := link.Spec{Rate: 100e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 1_250_000}}
	spike := usual
	spike.Delay += longer
	must(t, p.there.Set(usual))
	begun := func() { // after the first round trip, several before slow start would end
		time.Sleep(80 * time.Millisecond)
		must(t, p.there.Set(spike))
	}
	return slowStartOn(t, p, ring, 3*time.Second, begun, func(one cubicTransition) {
		if one.To == css {
			must(t, p.there.Set(usual))
		}
	})
}

// TestRootCubicSpike: round trips that are longer for a while, as with another
// connection's burst in the queue, lead to conservative slow start and from there back to
// slow start.
func TestRootCubicSpike(t *testing.T) {
	trace := spikeOn(t, tracedCubic(t, "test_trace"), 10*time.Millisecond)
	if len(trace) < 2 || trace[0].To != css || trace[1].To != slowStart {
		t.Fatalf("%v: want conservative slow start, and back to slow start", trace)
	}
	if begin, last := trace[0], trace[len(trace)-1]; last.Cwnd < 3*begin.Cwnd {
		t.Errorf("slow start ended at %d packets, conservative slow start began at %d: want that slow start resumed", last.Cwnd, begin.Cwnd)
	}
}

// TestRootCubicLongQueue: round trips that are longer by half for a while, as with other connections that fill the link, end slow
// start, also if they are as short as before at once.
func TestRootCubicLongQueue(t *testing.T) {
	trace := spikeOn(t, tracedCubic(t, "test_trace"), 65*time.Millisecond)
	if len(trace) != 2 || trace[0].To != css || trace[1].From != css || trace[1].Why != cssRounds {
		t.Fatalf("%v: want conservative slow start, and its end after five rounds", trace)
	}
	if begin, end := trace[0], trace[1]; end.Cwnd > 4*begin.Cwnd { // 1.25^5 is 3.05
		t.Errorf("the window grew from %d to %d packets in conservative slow start", begin.Cwnd, end.Cwnd)
	}
}

// TestRootCubicQueue: a queue that stays ends slow start after five rounds.
func TestRootCubicQueue(t *testing.T) {
	ring := tracedCubic(t, "test_trace")
	p := newPath(t)
	// ACKs arrive 6 ms apart: no train. The queue has room for all five rounds.
	must(t, p.there.Set(link.Spec{Rate: 4e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 600_000}}))
	trace := slowStartOn(t, p, ring, 10*time.Second, func() {}, func(cubicTransition) {})
	if len(trace) < 2 {
		t.Fatalf("%v: want the end of slow start", trace)
	}
	last := trace[len(trace)-1]
	if last.From != css || last.To != convex || last.Why != cssRounds || last.Retrans > 0 {
		t.Errorf("slow start ended by %s", last)
	}
	if begin := trace[len(trace)-2]; last.Cwnd > 4*begin.Cwnd { // 1.25^5 is 3.05
		t.Errorf("the window grew from %d to %d packets in conservative slow start", begin.Cwnd, last.Cwnd)
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
		trace := slowStartOn(t, p, ring, 3*time.Second, func() {}, func(cubicTransition) {})
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
