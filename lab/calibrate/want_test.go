package calibrate

import (
	"math"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/topology"
)

const ms = time.Millisecond

func TestAlongReversesLinks(t *testing.T) {
	g := topology.Chain(2)
	// The second link is defined against the direction of the traffic.
	g.Edges[1].From, g.Edges[1].To = g.Edges[1].To, g.Edges[1].From
	l := &topology.Layout{Graph: g}
	for _, e := range g.Edges {
		l.Wires = append(l.Wires, &topology.Wire{Name: e.Name})
	}
	w, err := Along(l, &topology.Host{Name: "sender1"}, &topology.Host{Name: "receiver1"}, func(wire string) (f, b link.Spec) {
		if wire == "hop1" {
			return link.Spec{Delay: 1 * ms}, link.Spec{Delay: 2 * ms}
		}
		return link.Spec{Delay: 3 * ms}, link.Spec{Delay: 4 * ms}
	})
	if err != nil {
		t.Fatal(err)
	}
	delays := func(specs []link.Spec) (d [2]time.Duration) {
		for i, s := range specs {
			d[i] = s.Delay
		}
		return d
	}
	if got := delays(w.Forward); got != [2]time.Duration{1 * ms, 4 * ms} {
		t.Errorf("forward %v", got)
	}
	if got := delays(w.Backward); got != [2]time.Duration{3 * ms, 2 * ms} {
		t.Errorf("backward %v", got)
	}
	if _, err := Along(l, &topology.Host{Name: "sender1"}, &topology.Host{Name: "nobody"}, nil); err == nil {
		t.Error("a path to nobody")
	}
}

func TestAskAddsUp(t *testing.T) {
	a := ask([]link.Spec{
		{Delay: 10 * ms, Jitter: 3 * ms, Loss: 0.1, Rate: 100e6, ECN: 1000},
		{Delay: 5 * ms, Jitter: 4 * ms, Loss: 0.5, Reorder: 0.2, Rate: 10e6, Queue: link.Queue{Packets: 100}},
	})
	near := func(name string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-6*math.Abs(want)+1e-12 {
			t.Errorf("%s is %g, want %g", name, got, want)
		}
	}
	near("delay", a.Delay.Seconds(), 0.015)
	near("jitter", a.Jitter.Seconds(), 0.005)
	near("loss", a.Loss, 0.55)
	near("reordering", a.Reorder, 0.2)
	near("rate", a.Rate, 10e6)
	near("queue", a.Queue.Seconds(), 100*1514*8/10e6)
	near("room", a.burstPackets, 100)
	near("time of a byte", float64(a.perByte), 880)
	if !a.ECN || a.marks {
		t.Error("the first link may mark, but the second one's queue is the full one")
	}

	a = ask([]link.Spec{{Rate: 100e6, Offload: true, ECN: 30e3}, {Policer: link.Policer{Rate: 5e6, Burst: 20e3}, Offload: true}})
	if a.Rate != 5e6 || !a.policed || a.Queue != 0 || a.bucket != 20e3 || a.marks || !a.offload {
		t.Errorf("behind a policer: %+v", a)
	}
	if a = ask([]link.Spec{{Rate: 100e6, ECN: 30e3}}); !a.marks {
		t.Error("100 ms of queue hold more than 30 kB")
	}
	if a = ask(nil); a.Rate != 0 || a.Loss != 0 || a.offload {
		t.Errorf("nothing: %+v", a)
	}
}

func TestFloodFillsTheQueue(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spec  link.Spec
		fills bool
	}{
		{"bufferbloat", link.Spec{Rate: 20e6, Queue: link.Queue{Packets: 1000}}, true},
		{"fast", link.Spec{Rate: 1e9}, true},
		{"short", link.Spec{Rate: 50e6, Queue: link.Queue{Packets: 5}}, true},
		{"lossy", link.Spec{Rate: 50e6, Loss: 0.3}, true},
		{"policer", link.Spec{Policer: link.Policer{Rate: 10e6, Burst: 1e6}}, true},
		{"minutes", link.Spec{Rate: 1e9, Queue: link.Queue{Bytes: 10e9}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := direction{asked: ask([]link.Spec{tc.spec}), overhead: 42, easy: 10_000}
			f := w.plan(1, 500*ms)
			packets, more := f.due(f.before)
			if !more {
				t.Error("it ends before the queue is full")
			}
			in := float64(packets) * 8 * 1514 * (1 - tc.spec.Loss)
			out := w.asked.Rate * f.before.Seconds()
			room := max(w.asked.Queue.Seconds()*w.asked.Rate, 8*float64(w.asked.bucket))
			if fills := in-out >= room*0.999; fills != tc.fills || f.fills != tc.fills {
				t.Errorf("%.0f bits come and %.0f go in %s, room is %.0f; it says %t, want %t", in, out, f.before, room, f.fills, tc.fills)
			}
			all, more := f.due(time.Hour)
			if more || f.payload != 1472 {
				t.Errorf("payload %d, ends: %t", f.payload, !more)
			}
			if rate := float64(all-packets) * 8 * 1514 * (1 - tc.spec.Loss) / (f.segments[1].duration).Seconds(); rate < 1.19*w.asked.Rate {
				t.Errorf("holds by %.3g bit/s, want 1.2 times %.3g", rate, w.asked.Rate)
			}
		})
	}
}

// A stall of the machine does not change the measured rate: 100 arrivals a second, of which
// those during a stall arrive together at its end.
func TestRateBesideStalls(t *testing.T) {
	for _, tc := range []struct {
		name        string
		begin, long time.Duration // of the stall
	}{{"none", 0, 0}, {"first", -5 * ms, 400 * ms}, {"middle", 1200 * ms, 700 * ms}, {"last", 4600 * ms, 500 * ms}} {
		var at []time.Duration
		for i := range 500 {
			due := time.Duration(i) * 10 * ms
			if due >= tc.begin && due < tc.begin+tc.long {
				due = tc.begin + tc.long
			}
			at = append(at, due)
		}
		if got := perSecond(at); got < 99 || got > 101 {
			t.Errorf("%s: %.1f arrivals a second, want 100", tc.name, got)
		}
	}
	if got := perSecond([]time.Duration{0, 10 * ms}); got != 100 {
		t.Errorf("two arrivals: %.1f a second", got)
	}
}
