package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// steady are the metrics of a path of 1 ms, with round-trip times in milliseconds, on which
// values of RTO_MIN from 200 ms down to a number of them have been shown to be safe.
func steady(srtt, rttvar float32, safe int) *estimate.Path {
	m := measured(srtt, rttvar)
	m.MinRTT = estimate.Window{Half: 1000, Began: adaptNow - int64(time.Minute)}
	m.RTOMin.At = adaptNow
	for i := range safe {
		m.RTOMin.Counts[i] = estimate.Spurious{Sent: 5000, Resent: 1, Since: adaptNow - int64(time.Minute)}
	}
	return m
}

func TestAdaptRTOMin(t *testing.T) {
	barred := steady(1.2, 0.1, 5)
	barred.RTOMin.Barred, barred.RTOMin.Until = 2, adaptNow+int64(time.Minute)
	old := steady(1.2, 0.1, 5)
	old.RTTAt = adaptNow - int64(metricsAge) - 1
	least := func(ms uint64) (p tcp.Params) {
		p.Set(tcp.RTOMin, ms*1000)
		return p
	}
	for _, c := range []struct {
		name    string
		metrics *estimate.Path
		bounds  tcp.Params
		was     uint16
		want    uint16
	}{
		{"nothing is shown yet", steady(1.2, 0.1, 0), tcp.Params{}, 0, 0},
		{"the first step", steady(1.2, 0.1, 1), tcp.Params{}, 0, 100},
		{"the second step", steady(1.2, 0.1, 2), tcp.Params{}, 100, 50},
		{"after a restart", steady(1.2, 0.1, 2), tcp.Params{}, 0, 50},
		{"not below the bound", steady(1.2, 0.1, 5), tcp.Params{}, 50, 50},
		{"a lower bound", steady(1.2, 0.1, 5), least(10), 50, 10},
		{"a higher bound", steady(1.2, 0.1, 5), least(100), 100, 100},
		{"round trips vary by 20 ms", steady(5, 4, 5), tcp.Params{}, 0, 50},
		{"by 26 ms", steady(7, 5, 5), tcp.Params{}, 0, 100},
		{"by 26 ms, with 50 ms in use", steady(7, 5, 5), tcp.Params{}, 50, 50},
		{"by 60 ms", steady(21, 10, 5), tcp.Params{}, 0, 0},
		{"by 60 ms, with 100 ms in use", steady(21, 10, 5), tcp.Params{}, 100, 100},
		{"by 120 ms, with 100 ms in use", steady(41, 20, 5), tcp.Params{}, 100, 0},
		{"50 ms is barred", barred, tcp.Params{}, 50, 100},
		{"metrics are old", old, tcp.Params{}, 50, 0},
	} {
		r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.RTOMin}, Bounds: c.bounds}
		d := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, Adapted: Adapted{RTOMin: c.was}, Now: adaptNow})
		if got := AdaptedIn(&d.Policy); got != (Adapted{RTOMin: c.want}) {
			t.Errorf("%s: %+v, want %d ms", c.name, got, c.want)
		}
		if us, _ := d.Policy.Params.Get(tcp.RTOMin); us != uint64(c.want)*1000 {
			t.Errorf("%s: policy has %d us", c.name, us)
		}
	}
}

func TestRTOMinThatIsSetIsNotAdapted(t *testing.T) {
	r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.RTOMin}}
	r.Set.Set(tcp.RTOMin, 30_000)
	if got := r.Adapted(steady(1.2, 0.1, 5), nil, Adapted{}, adaptNow); got != (Adapted{}) {
		t.Errorf("%+v", got)
	}
}

func TestRTOMinSafer(t *testing.T) {
	ms := func(ms uint16) Adapted { return Adapted{RTOMin: ms} }
	for _, c := range []struct {
		now, was uint16
		want     bool
	}{{100, 50, true}, {0, 100, true}, {50, 100, false}, {50, 50, false}, {50, 0, false}} {
		if got := ms(c.now).Safer(ms(c.was)); got != c.want {
			t.Errorf("%d ms after %d: %v", c.now, c.was, got)
		}
	}
}

func TestWhyRTOMin(t *testing.T) {
	got := whyAdapted(tcp.RTOMin, Adapted{RTOMin: 50}, steady(1.2, 0.1, 3))
	for _, want := range []string{"1.2ms", "600µs", "5000", " 1 were spurious"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
}
