package cc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
)

// The times at which ACKs arrive decide whether a train ends slow start. The tests observe
// them by the kernel's own tracepoint, because a machine that pauses breaks trains, and then a
// control that ends slow start later is right.

// arrival is an ACK as it reaches its connection.
type arrival struct {
	At       uint64 // ns, by the clock of the transitions
	Una, Nxt uint32 // sequence numbers; before the ACK is processed
	Cwnd     uint32 // packets
	Marked   uint32 // packets so far; before the ACK is processed
}

// arrivals are the ACKs of a connection, in order.
type arrivals []arrival

// marked is how many packets had been marked when the last ACK before a time arrived.
func (a arrivals) marked(before uint64) (n uint32) {
	for _, one := range a {
		if one.At < before {
			n = one.Marked
		}
	}
	return n
}

// after reports whether sequence number a comes after b.
func after(a, b uint32) bool { return int32(a-b) > 0 }

// train is a series of ACKs that begins with a round.
type train struct {
	From, To uint64 // ns
}

func (t train) lasts() time.Duration { return time.Duration(t.To - t.From) }

// trains calls each for every ACK of a train, with the train up to that ACK, until each
// returns false. Two ACKs of a train are at most gap apart. A round ends with the first ACK
// for data that was sent after it began, and a broken train does not resume in its round:
// hystart_update and hystart_reset of the kernel's tcp_cubic.c.
func (a arrivals) trains(gap time.Duration, each func(train) bool) {
	const lowWindow = 16 // packets: hystart_low_window
	var now train
	var end uint32
	for i, one := range a {
		switch {
		case i+1 < len(a) && a[i+1].Una == one.Una: // acknowledges nothing
			continue
		case i == 0 || i+1 < len(a) && after(a[i+1].Una, end):
			now, end = train{From: one.At, To: one.At}, one.Nxt
			continue
		case one.Cwnd < lowWindow || one.At-now.To > uint64(gap):
			continue
		}
		now.To = one.At
		if !each(now) {
			return
		}
	}
}

// checkTrain returns what is wrong with the end of a slow start, given the ACKs that the
// connection got. The tolerances are for the time between an ACK's arrival and what the
// control makes of it.
func checkTrain(trace []cubicTransition, acks arrivals) (complaints []string) {
	const (
		gap      = 2 * time.Millisecond // hystart_ack_delta_us
		slack    = gap / 10
		allowed  = time.Millisecond // hystart_ack_delay: at most
		delay    = time.Millisecond // from the arrival to the transition
		tenth    = 10
		fraction = 2 // of the least round trip, without pacing
	)
	end := trace[0]
	least := time.Duration(end.MinRTT) * time.Microsecond
	acks.trains(gap-slack, func(t train) bool {
		if t.To+uint64(delay) >= end.At {
			return false
		}
		if most := (least + allowed) / fraction; t.lasts() > most+most/tenth {
			complaints = append(complaints, fmt.Sprintf("a train of %s, the least round trip is %s, and slow start continues until %s", t.lasts(), least, end))
			return false
		}
		return true
	})
	if end.Why != byTrain {
		return complaints
	}
	longest := time.Duration(0)
	acks.trains(gap+slack, func(t train) bool {
		if t.To > end.At {
			return false
		}
		if end.At-t.To < uint64(delay) {
			longest = t.lasts()
		}
		return true
	})
	least = time.Duration(end.MinRTT) * time.Microsecond / fraction
	if longest < least-least/tenth {
		complaints = append(complaints, fmt.Sprintf("ends for a train of %s, less than %s: %s", longest, least, end))
	}
	return complaints
}

// observeArrivals lets the kernel report all packets that established connections
// receive, as long as the test runs.
func observeArrivals(t *testing.T) *ringbuf.Reader {
	t.Helper()
	spec, err := loadAcks()
	must(t, err)
	coll, err := ebpf.NewCollection(spec)
	must(t, err)
	t.Cleanup(coll.Close)
	l, err := link.AttachTracing(link.TracingOptions{Program: coll.Programs[acksProgProbe]})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	ring, err := ringbuf.NewReader(coll.Maps[acksMapAcks])
	must(t, err)
	t.Cleanup(func() { must(t, ring.Close()) })
	return ring
}

// readArrivals reads what was reported so far, and returns the ACKs of the connection from
// a port.
func readArrivals(t *testing.T, ring *ringbuf.Reader, port uint16) (all arrivals) {
	t.Helper()
	ring.SetDeadline(time.Now().Add(10 * time.Millisecond))
	for {
		r, err := ring.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if len(all) == 0 {
				t.Fatal("the kernel reported no ACK")
			}
			return all
		}
		must(t, err)
		var raw acksAck
		must(t, binary.Read(bytes.NewReader(r.RawSample), binary.NativeEndian, &raw))
		if raw.LocalPort == port {
			all = append(all, arrival{At: raw.AtNs, Una: raw.SndUna, Nxt: raw.SndNxt, Cwnd: raw.Cwnd, Marked: raw.DeliveredCe})
		}
	}
}

// trainOf is two rounds of ACKs, apart by spacing, the second with a window of 40 packets
// and a pause before its ACK number pauseAt.
func trainOf(spacing, pause time.Duration, pauseAt int) (all arrivals) {
	now, una := uint64(1e9), uint32(1)
	for i := range 60 {
		cwnd := uint32(10)
		if i >= 20 {
			cwnd = 40
		}
		switch {
		case i == 20:
			now += uint64(10 * time.Millisecond)
		case i == 20+pauseAt && pauseAt > 0:
			now += uint64(pause)
		default:
			now += uint64(spacing)
		}
		nxt := uint32(21) // sent in the first round
		if i >= 20 {
			nxt = 61
		}
		all = append(all, arrival{At: now, Una: una, Nxt: nxt, Cwnd: cwnd})
		una++
	}
	return append(all, arrival{At: now + 1e9, Una: una, Nxt: una})
}

func TestTrainCheck(t *testing.T) {
	ms := func(n float64) time.Duration { return time.Duration(n * 1e6) }
	whole := trainOf(ms(0.5), 0, 0) // 39 gaps: a train of 19.5 ms
	broken := trainOf(ms(0.5), ms(3), 10)
	at := func(a arrivals, since time.Duration) uint64 { return a[20].At + uint64(since) }
	end := func(at uint64, why cubicWhy, least uint32) []cubicTransition {
		return []cubicTransition{{At: at, Why: why, To: convex, MinRTT: least}}
	}
	for _, c := range []struct {
		name  string
		trace []cubicTransition
		acks  arrivals
		want  string
	}{
		{"ends in time", end(at(whole, ms(10.5)), byTrain, 20_000), whole, ""},
		{"continues", end(at(whole, ms(19)), byLoss, 20_000), whole, "slow start continues"},
		{"ends too late", end(at(whole, ms(19)), byTrain, 20_000), whole, "slow start continues"},
		{"ends too early", end(at(whole, ms(5)), byTrain, 20_000), whole, "ends for a train of 5ms"},
		{"no train is long enough", end(at(whole, ms(19)), byLoss, 60_000), whole, ""},
		{"a pause breaks it", end(at(broken, ms(19)), byLoss, 20_000), broken, ""},
		{"does not see the pause", end(at(broken, ms(13)), byTrain, 20_000), broken, "ends for a train of 0s"},
	} {
		complaints := checkTrain(c.trace, c.acks)
		found := slices.ContainsFunc(complaints, func(s string) bool { return strings.Contains(s, c.want) })
		if c.want == "" && len(complaints) > 0 || c.want != "" && !found {
			t.Errorf("%s: %q, want %q", c.name, complaints, c.want)
		}
	}
}
