package engine

import (
	"math"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// A sample counts for all connections that it stands for. If connections that fail are reported more
// often than others, which are thinned, their share is what it is among all connections.
func TestThinnedSamples(t *testing.T) {
	w := newWorld(t, nil, policy.Rule{Name: "fixed", CC: reno, Rollout: 0.5})
	var all, treated, failed float64
	const samples, each = 900, 8
	for i := range samples {
		s, fails := w.connect(guardedHost, allAlike), i%9 == 0
		if s.StandsFor = each; fails {
			s.StandsFor, s.End = 1, tcp.EndReset
		}
		w.now += w.gap
		s.At = w.now
		w.e.Observe(s)
		w.e.Tick(w.now)
		all += float64(s.StandsFor)
		if s.Has(tcp.FlagHoldOut) {
			continue
		}
		if treated += float64(s.StandsFor); fails {
			failed += float64(s.StandsFor)
		}
	}
	totals := w.e.Summary(time.Unix(0, w.now)).Totals
	if n := totals.Connections["close"]; float64(n) != all || totals.Samples["close"] != samples {
		t.Errorf("%d connections and %d samples, want %.0f and %d", n, totals.Samples["close"], all, samples)
	}
	f, _ := w.e.rules.states[0].root.failures.Harm()
	if want := failed / treated; treated == all || math.Abs(f.TreatedShare-want) > 1e-9 {
		t.Errorf("%.4f of the connections failed, want %.4f", f.TreatedShare, want)
	}
}
