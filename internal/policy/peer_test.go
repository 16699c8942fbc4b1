package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// The option is sent on every path of the rule; RTO_MIN is lowered only if round-trip times are known to vary little.
func TestAdaptPeerOption(t *testing.T) {
	barred := steady(0.3, 0.02, 0)
	barred.RTOMin.Barred, barred.RTOMin.Until = 3, adaptNow+int64(time.Minute)
	old := steady(0.3, 0.02, 0)
	old.RTTAt = adaptNow - int64(metricsAge) - 1
	with := func(p estimate.Peer) *estimate.Path {
		m := steady(1.2, 0.1, 0)
		m.Peer = &p
		return m
	}
	const day = int64(24 * time.Hour)
	for _, c := range []struct {
		name    string
		metrics *estimate.Path
		least   uint64 // bound of rto_min in microseconds
		was     uint16
		want    uint16
	}{
		{"nothing is known", nil, 0, 0, 200},
		{"no round-trip time", &estimate.Path{}, 0, 5, 200},
		{"metrics are old", old, 0, 1, 200},
		{"round trips rise by 0.6 ms", steady(1.2, 0.1, 0), 0, 0, 2},
		{"the same, 1 ms is in use", steady(1.2, 0.1, 0), 0, 1, 1},
		{"by 3.2 ms", steady(3, 0.3, 0), 0, 0, 10},
		{"the same, 5 ms is in use", steady(3, 0.3, 0), 0, 5, 5},
		{"by 160 ms", steady(41, 30, 0), 0, 0, 200},
		{"the rule bounds rto_min", steady(1.2, 0.1, 0), 25_000, 0, 25},
		{"25 ms is barred", barred, 0, 0, 50},
		{"a SYN was lost", with(estimate.Peer{LostAt: adaptNow - 1}), 0, 2, 0},
		{"a SYN was lost a day ago", with(estimate.Peer{LostAt: adaptNow - day}), 0, 0, 2},
		{"a SYN was lost, but others were answered", with(estimate.Peer{LostAt: adaptNow - 1, AnsweredAt: adaptNow - day/2}), 0, 2, 2},
	} {
		r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.PeerOption}}
		if c.least != 0 {
			r.Bounds.Set(tcp.RTOMin, c.least)
		}
		d := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, Adapted: Adapted{Peer: c.was}, Now: adaptNow})
		if got := AdaptedIn(&d.Policy); got != (Adapted{Peer: c.want}) {
			t.Errorf("%s: %+v, want %d ms", c.name, got, c.want)
		}
	}
}

// The bound that an objective has for rto_min allows for the delay of ACKs, which the peer tells.
func TestPeerOptionWithObjective(t *testing.T) {
	r := &Rule{Learn: &Learn{Objective: learn.Realtime}, Adapt: []tcp.Field{tcp.RTOMin, tcp.PeerOption}}
	r.UseObjective()
	if got := r.Adapted(steady(1.2, 0.1, 0), nil, Adapted{}, adaptNow); got.Peer != 2 {
		t.Errorf("%+v", got)
	}
}

func TestPeerOptionSafer(t *testing.T) {
	if a := (Adapted{Peer: 50}); !a.Safer(Adapted{Peer: 25}) || a.Safer(Adapted{Peer: 100}) {
		t.Error("a longer value is not safer, or a shorter one is")
	}
	if !(Adapted{}).Safer(Adapted{Peer: 25}) {
		t.Error("without the option is not safer")
	}
}

func TestWhyPeerOption(t *testing.T) {
	m := steady(1.2, 0.1, 0)
	m.Peer = &estimate.Peer{Delack: 8 * time.Millisecond, At: adaptNow}
	for a, want := range map[Adapted]string{{Peer: 2}: "latest told 8ms", {Peer: 200}: "left to the kernel"} {
		if got := whyAdapted(tcp.PeerOption, a, m); !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
}
