package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// receives are the metrics of a path of 50 ms on which a connection received that many Mbit/s.
func receives(mbit float64) *estimate.Path {
	m := measured(60, 5)
	m.MinRTT.Min(adaptNow, 50_000, time.Minute)
	m.ReceiveRate.Max(adaptNow, uint64(mbit*1e6/8), time.Minute)
	return m
}

func TestAdaptReceiveWindow(t *testing.T) {
	lan := receives(900)
	lan.MinRTT.Min(adaptNow, 300, time.Minute)
	for _, c := range []struct {
		name    string
		metrics *estimate.Path
		was     uint16
		want    uint16
	}{
		{"20 Mbit/s", receives(20), 0, 342}, // 4 x 125 kB
		{"a little more than in use", receives(24), 342, 342},
		{"much more", receives(40), 342, 684},
		{"much less", receives(10), 342, 171},
		{"the most", receives(900), 0, 718},
		{"close to the most", receives(900), 600, 718},
		{"what the kernel gives anyway", receives(2), 342, 0},
		{"a data centre", lan, 0, 0},
		{"it only sends", measured(60, 5), 0, 0},
	} {
		r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.InitRwnd}}
		d := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, Adapted: Adapted{InitRwnd: c.was}, Now: adaptNow})
		if got := AdaptedIn(&d.Policy); got != (Adapted{InitRwnd: c.want}) {
			t.Errorf("%s: %+v, want a receive window of %d", c.name, got, c.want)
		}
	}
	if got := whyAdapted(tcp.InitRwnd, Adapted{}, receives(20)); !strings.HasPrefix(got, "4 times what a connection received in a least round-trip time of 50ms (20.0 Mbit/s)") {
		t.Error(got)
	}
}
