package calibrate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// wire builds one link with the Specs forward and backward.
func wire(t *testing.T, forward, backward link.Spec) *topology.Layout {
	t.Helper()
	testenv.Root(t)
	n, err := topology.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	l, err := topology.Build(n, topology.Chain(1))
	if err != nil {
		t.Fatal(err)
	}
	w := l.Wires[0]
	for ends, spec := range map[link.Ends]link.Spec{{From: w.From, To: w.To}: forward, {From: w.To, To: w.From}: backward} {
		d, err := link.Shape(ends, spec, link.Auto)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Errorf("close link: %v", err)
			}
		})
	}
	return l
}

// asked are Specs of links for the tests.
var asked = []struct {
	name              string
	forward, backward link.Spec
	ipv6              bool
}{
	{name: "everything", forward: link.Spec{Rate: 20e6, Delay: 20 * ms, Jitter: 5 * ms, Loss: 0.01, Queue: link.Queue{Bytes: 200e3}, ECN: 30e3}},
	{name: "loss, IPv6", forward: link.Spec{Loss: 0.02}, ipv6: true,
		backward: link.Spec{Delay: 5 * ms, Bursts: link.Bursts{ToBad: 0.02, ToGood: 0.2, LossBad: 0.5}}},
	{name: "clean"},
	{name: "delay", forward: link.Spec{Delay: 10 * ms}, backward: link.Spec{Delay: 10 * ms, Reorder: 0.05}},
	{name: "rate", forward: link.Spec{Rate: 50e6, Delay: 5 * ms, Queue: link.Queue{Packets: 100}}, backward: link.Spec{Rate: 5e6}},
	{name: "jitter and reordering", forward: link.Spec{Delay: 10 * ms, Jitter: 5 * ms, Reorder: 0.2},
		backward: link.Spec{Delay: 5 * ms, Reorder: 0.7}},
	{name: "policer", forward: link.Spec{Policer: link.Policer{Rate: 10e6, Burst: 50e3}}, backward: link.Spec{Rate: 40e6, Offload: true}},
}

// TestRootLinksAreFoundAsAsked measures links that do what was asked. Whatever else the
// machine does, no measurement is better than what was asked.
func TestRootLinksAreFoundAsAsked(t *testing.T) {
	for _, tc := range asked[:2] {
		t.Run(tc.name, func(t *testing.T) {
			l := wire(t, tc.forward, tc.backward)
			m, err := Link(t.Context(), l, l.Senders[0], l.Receivers[0],
				Want{Forward: []link.Spec{tc.forward}, Backward: []link.Spec{tc.backward}, IPv6: tc.ipv6, Quick: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("\n%s", m)
			for _, r := range m.Rows() {
				if strings.Contains(r.Wrong, "too short") || strings.Contains(r.Wrong, "too fast") || strings.Contains(r.Wrong, "too little") {
					t.Errorf("%s: %s", r.Name, r.Wrong)
				}
			}
			if c := m.Forward; tc.forward.Loss > 0 && (c.Lost == 0 || c.Loss < tc.forward.Loss/2) {
				t.Errorf("%.4f of %d packets lost, %.4f asked", c.Loss, c.Sent, tc.forward.Loss)
			}
		})
	}
}

func TestMeasureLinksAreFoundAsAsked(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		for _, tc := range asked {
			l := wire(t, tc.forward, tc.backward)
			found, err := Link(t.Context(), l, l.Senders[0], l.Receivers[0],
				Want{Forward: []link.Spec{tc.forward}, Backward: []link.Spec{tc.backward}, IPv6: tc.ipv6, Quick: true})
			if err != nil {
				t.Fatal(err)
			}
			figure := "asked"
			if err := found.Check(); err != nil {
				figure = strings.Split(err.Error(), ":")[0]
			}
			m.Holds(tc.name, "found as asked", figure == "asked", figure)
		}
	})
}

// TestRootBrokenLinksAreCaught measures links that do something other than what was asked:
// each measurement must detect it.
func TestRootBrokenLinksAreCaught(t *testing.T) {
	for _, tc := range []struct {
		name      string
		is, asked link.Spec
		wants     []string // in the error
	}{
		{"loss twice as asked", link.Spec{Loss: 0.04}, link.Spec{Loss: 0.02}, []string{"loss forward"}},
		{"half the delay, and reordering", link.Spec{Delay: 5 * ms, Reorder: 0.05}, link.Spec{Delay: 10 * ms}, []string{"delay forward", "reordering forward"}},
		{"too slow", link.Spec{Rate: 9e6}, link.Spec{Rate: 10e6}, []string{"rate forward"}},
		{"short queue, no marks", link.Spec{Rate: 10e6, Queue: link.Queue{Packets: 50}},
			link.Spec{Rate: 10e6, Queue: link.Queue{Packets: 100}, ECN: 20e3}, []string{"full queue forward", "marks forward"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := wire(t, tc.is, link.Spec{})
			want := Want{Forward: []link.Spec{tc.asked}, Backward: []link.Spec{{}}, Quick: true}
			m, err := Link(t.Context(), l, l.Senders[0], l.Receivers[0], want)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("\n%s", m)
			err = m.Check()
			for _, want := range tc.wants {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Check() = %v, want %q in it", err, want)
				}
			}
		})
	}
}

// Link returns no error for a link that carries nothing; Check does.
func TestRootDeadLinkIsRefused(t *testing.T) {
	l := wire(t, link.Spec{Loss: 1}, link.Spec{})
	want := Want{Forward: []link.Spec{{Rate: 10e6}}, Backward: []link.Spec{{}}, Quick: true}
	m, err := Link(t.Context(), l, l.Senders[0], l.Receivers[0], want)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", m)
	err = m.Check()
	for _, want := range []string{"probes came back", "loss forward"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check() = %v, want %q in it", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "loss backward") {
		t.Errorf("the way back is sane: %v", err)
	}
}

// When the context ends, the probes end and so does the wait for late ones, here of ten
// seconds.
func TestRootLinkEndsWithItsContext(t *testing.T) {
	l := wire(t, link.Spec{Loss: 1}, link.Spec{})
	late := Want{Forward: []link.Spec{{Delay: 10 * time.Second}}, Backward: []link.Spec{{}}, Quick: true}
	for after, want := range map[time.Duration]Want{200 * time.Millisecond: {}, 1500 * time.Millisecond: late} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		began := time.Now()
		_, err := Link(ctx, l, l.Senders[0], l.Receivers[0], want)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %s: Link() = %v", after, err)
		}
		if d := time.Since(began); d > after+2*time.Second {
			t.Errorf("after %s: it took %s", after, d)
		}
	}
}
