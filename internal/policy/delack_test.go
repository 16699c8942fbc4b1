package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// waited are the metrics of a path with a least round-trip time in microseconds, and of its peers: a
// share of their segments was sent after they had waited for an ACK.
func waited(trip uint64, share float32) *estimate.Path {
	m := measured(float32(trip)/1000, 0.1)
	m.MinRTT = estimate.Window{Half: trip, Began: adaptNow - int64(time.Minute)}
	m.Delack = new(estimate.Delack)
	m.Delack.At, m.Delack.Received, m.Delack.Waits = adaptNow, 1000, 1000*share
	m.Delack.Counts[0][0] = estimate.ACKs{Received: 1000, Sent: 500}
	return m
}

func TestAdaptDelackMax(t *testing.T) {
	barred := func(i uint8) *estimate.Path {
		m := waited(1000, 0.5)
		m.Delack.Barred, m.Delack.Until = i, adaptNow+int64(time.Minute)
		return m
	}
	alone := waited(1000, 0.5)
	alone.Delack.Counts[0][0].Received = 50
	old := waited(1000, 0.5)
	old.RTTAt = adaptNow - int64(metricsAge) - 1
	least := func(ms uint64) (p tcp.Params) {
		p.Set(tcp.DelackMax, ms*1000)
		return p
	}
	none := tcp.Params{}
	for _, c := range []struct {
		name      string
		metrics   *estimate.Path
		bounds    tcp.Params
		was, want uint16
	}{
		{"nothing is known", measured(1, 0.1), none, 0, 0},
		{"1 ms", waited(1000, 0.5), none, 0, 8},
		{"1 ms, a lower bound", waited(1000, 0.5), least(4), 0, 4},
		{"1 ms, a higher bound", waited(1000, 0.5), least(16), 0, 16},
		{"7 ms, a lower bound", waited(7000, 0.5), least(4), 0, 4},
		{"8 ms, a lower bound", waited(8000, 0.5), least(4), 0, 8},
		{"9 ms, 4 ms in use", waited(9000, 0.5), least(4), 4, 4},
		{"10 ms, 4 ms in use", waited(10_000, 0.5), least(4), 4, 8},
		{"15 ms", waited(15_000, 0.5), none, 0, 8},
		{"16 ms", waited(16_000, 0.5), none, 0, 16},
		{"19 ms, 8 ms in use", waited(19_000, 0.5), none, 8, 8},
		{"20 ms, 8 ms in use", waited(20_000, 0.5), none, 8, 16},
		{"39 ms", waited(39_000, 0.5), none, 0, 16},
		{"40 ms", waited(40_000, 0.5), none, 16, 0},
		{"no waits", waited(1000, 0), none, 0, 0},
		{"few waits", waited(1000, 0.09), none, 0, 0},
		{"enough waits", waited(1000, 0.11), none, 0, 8},
		{"fewer waits, in use", waited(1000, 0.06), none, 8, 8},
		{"too few, in use", waited(1000, 0.04), none, 8, 0},
		{"8 ms costs too many ACKs", barred(2), none, 8, 16},
		{"so does 16 ms", barred(1), none, 16, 0},
		{"4 ms does", barred(3), least(4), 4, 8},
		{"nothing to compare with", alone, none, 8, 0},
		{"metrics are old", old, none, 8, 0},
	} {
		r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.DelackMax}, Bounds: c.bounds}
		d := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, Adapted: Adapted{DelackMax: c.was}, Now: adaptNow})
		if got := AdaptedIn(&d.Policy); got != (Adapted{DelackMax: c.want}) {
			t.Errorf("%s: %+v, want %d ms", c.name, got, c.want)
		}
		if us, _ := d.Policy.Params.Get(tcp.DelackMax); us != uint64(c.want)*1000 {
			t.Errorf("%s: policy has %d us", c.name, us)
		}
	}
}

func TestDelackMaxThatIsSetIsNotAdapted(t *testing.T) {
	r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.DelackMax}}
	r.Set.Set(tcp.DelackMax, 20_000)
	if got := r.Adapted(waited(1000, 0.5), nil, Adapted{}, adaptNow); got != (Adapted{}) {
		t.Errorf("%+v", got)
	}
}

func TestDelackMaxSafer(t *testing.T) {
	ms := func(ms uint16) Adapted { return Adapted{DelackMax: ms} }
	for _, c := range []struct {
		now, was uint16
		want     bool
	}{{16, 8, true}, {0, 16, true}, {8, 16, false}, {8, 8, false}, {8, 0, false}} {
		if got := ms(c.now).Safer(ms(c.was)); got != c.want {
			t.Errorf("%d ms after %d: %v", c.now, c.was, got)
		}
	}
}

func TestWhyDelackMax(t *testing.T) {
	m := waited(1200, 0.25)
	m.Delack.Counts[2][0] = estimate.ACKs{Received: 400, Sent: 240}
	got := whyAdapted(tcp.DelackMax, Adapted{DelackMax: 8}, m)
	for _, want := range []string{"1000 segments", " 250 only", "1.2ms", "with 8 ms, +0.100 ACKs"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
}
