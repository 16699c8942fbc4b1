package policy

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Connections are followed and counted as long as their path may give something to running ones. Windows
// and pacing rates are not adapted on short paths. Whether they are followed because of a window depends on whether one is raised.
func TestFollow(t *testing.T) {
	rtt := func(least uint64, samples uint32, at int64) *estimate.Path {
		m := measured(float32(least)/1000, 0)
		m.RTTs, m.RTTAt = samples, at
		m.MinRTT.Min(adaptNow, least, time.Minute)
		return m
	}
	short := rtt(100, 20, adaptNow)
	watched := path.Policy{CountFlows: true, WatchLosses: true}
	divided, counted := path.Policy{FollowAll: true, CountFlows: true}, path.Policy{CountFlows: true}
	for _, c := range []struct {
		name    string
		adapt   []tcp.Field
		metrics *estimate.Path
		root    bool
		want    path.Policy
	}{
		{"nothing is adapted", nil, rtt(5000, 20, adaptNow), false, path.Policy{}},
		{"timeouts", []tcp.Field{tcp.SynRTO, tcp.SynAckRTO}, rtt(5000, 20, adaptNow), false, path.Policy{}},
		{"windows", []tcp.Field{tcp.InitCwnd}, rtt(5000, 20, adaptNow), false, counted},
		{"a pacing rate", []tcp.Field{tcp.MaxPacingRate}, rtt(5000, 20, adaptNow), false, watched},
		{"windows, a path of half a millisecond", []tcp.Field{tcp.InitCwnd}, rtt(500, 20, adaptNow), false, counted},
		{"windows, a short path", []tcp.Field{tcp.InitCwnd, tcp.MaxPacingRate}, short, false, path.Policy{}},
		{"windows, one that is hardly known", []tcp.Field{tcp.InitCwnd}, rtt(100, 9, adaptNow), false, counted},
		{"a raised window", []tcp.Field{tcp.InitCwnd}, holds(400), false, divided},
		{"windows, an idle short path", []tcp.Field{tcp.InitCwnd}, rtt(100, 20, adaptNow-int64(metricsAge)-1), false, path.Policy{}},
		{"windows, one of which nothing is known", []tcp.Field{tcp.InitCwnd}, nil, false, counted},
		{"windows, unknown paths", []tcp.Field{tcp.InitCwnd}, short, true, path.Policy{}},
		{"a pacing rate, unknown paths", []tcp.Field{tcp.MaxPacingRate}, short, true, path.Policy{WatchLosses: true}},
		{"RTO_MIN, a short path", []tcp.Field{tcp.RTOMin}, short, false, path.Policy{FollowAll: true}},
		{"a clamp, a short path", []tcp.Field{tcp.CwndClamp}, short, false, divided},
	} {
		in := Input{Rule: &Rule{Learn: &Learn{}, Adapt: c.adapt}, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, Root: c.root, Now: adaptNow}
		p := Decide(&in).Policy
		if got := (path.Policy{FollowAll: p.FollowAll, CountFlows: p.CountFlows, WatchLosses: p.WatchLosses}); got != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
		in.WindowUsed = true // lately
		if p := Decide(&in).Policy; !c.root && p.FollowAll != (c.want.FollowAll || c.want.CountFlows) {
			t.Errorf("%s, after a raised window: followed %v", c.name, p.FollowAll)
		}
		in.Observe = true // everything is held out
		if p := Decide(&in).Policy; p.FollowAll || p.CountFlows || p.WatchLosses {
			t.Errorf("%s, in mode observe: %+v", c.name, p)
		}
	}
}

// A path does not alternate between being followed and not: each change has all sockets of the host looked at.
func TestFollowHasHysteresis(t *testing.T) {
	r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.InitCwnd}}
	for us, want := range map[uint64][2]bool{390: {false, false}, 450: {false, true}, 500: {true, true}} {
		m := measured(float32(us)/1000, 0)
		m.RTTs = 20
		m.MinRTT.Min(adaptNow, us, time.Minute)
		if got := [2]bool{r.FollowsAll(m, false, true), r.FollowsAll(m, true, true)}; got != want {
			t.Errorf("%d us: followed %v, want %v (if it was not, if it was)", us, got, want)
		}
	}
}
