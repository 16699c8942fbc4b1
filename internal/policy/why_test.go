package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// changed returns m after a change.
func changed(m *estimate.Path, change func(m *estimate.Path)) *estimate.Path {
	change(m)
	return m
}

// Of each field that is not adapted, the reason has the figures that decide.
func TestWhyKernel(t *testing.T) {
	const minute, hour = int64(time.Minute), int64(time.Hour)
	far := func(m *estimate.Path) { m.MinRTT = estimate.Window{Half: 45_000} }
	incast := func(i estimate.Incast) *estimate.Path {
		return changed(measured(2, 1), func(m *estimate.Path) { m.MinRTT, m.Incast = estimate.Window{Half: 200}, &i })
	}
	policer := func(p estimate.Policer) *estimate.Path {
		return changed(measured(20, 1), func(m *estimate.Path) { m.Policer = p })
	}
	barredRTO := steady(1.2, 0.1, 5)
	barredRTO.RTOMin.Barred, barredRTO.RTOMin.Until = 1, adaptNow+7*minute
	barredDelack := waited(1000, 0.5)
	barredDelack.Delack.Barred, barredDelack.Delack.Until = 1, adaptNow+7*minute
	for _, c := range []struct {
		field   tcp.Field
		metrics *estimate.Path
		was     Adapted
		rule    Rule
		want    string
	}{
		{tcp.InitCwnd, nil, Adapted{}, Rule{}, "no connection has shown a round-trip time"},
		{tcp.InitCwnd, &estimate.Path{RTTs: 50, RTTAt: adaptNow}, Adapted{}, Rule{}, "no connection has shown a round-trip time"},
		{tcp.InitCwnd, changed(holds(400), func(m *estimate.Path) { m.RTTs = 3 }), Adapted{}, Rule{}, "3 of the 10 samples that are needed have shown a round-trip time of the path"},
		{tcp.InitCwnd, changed(holds(400), func(m *estimate.Path) { m.RTTAt = adaptNow - 12*minute }), Adapted{}, Rule{}, "the latest round-trip time is 12m0s old: it is used for 10m0s"},
		{tcp.InitCwnd, changed(holds(400), func(m *estimate.Path) { m.RTTAt = adaptNow + hour }), Adapted{}, Rule{}, "the clock was set back"},
		{tcp.InitCwnd, changed(holds(400), func(m *estimate.Path) { m.SRTT = 60_000 }), Adapted{}, Rule{}, "srtt 60ms is 1.20 times the least round-trip time, 50ms (a window needs less than 1.15 times)"},
		{tcp.InitCwnd, changed(holds(400), func(m *estimate.Path) { m.SRTT = 70_000 }), Adapted{InitCwnd: 64, Window: 400}, Rule{}, "1.40 times the least round-trip time, 50ms (a window needs less than 1.35 times)"},
		{tcp.InitCwnd, changed(holds(400), func(m *estimate.Path) { m.Sent, m.Lost = 10_000, 35 }), Adapted{}, Rule{}, "0.35% of the recent packets were lost (a window needs less than 0.2%)"},
		{tcp.InitCwnd, changed(holds(400), func(m *estimate.Path) { m.MinRTT.Half = 400 }), Adapted{}, Rule{}, "the least round-trip time is 400µs: windows are raised from 1ms on"},
		{tcp.InitCwnd, changed(holds(400), func(m *estimate.Path) { m.CarriedAt = adaptNow - 80e9 }), Adapted{InitCwnd: 64, Window: 400}, Rule{}, "the latest number of packets that the path held is 1m20s old: it is used for 1m0s"},
		{tcp.InitCwnd, changed(holds(400), func(m *estimate.Path) { m.CarriedAt = 0 }), Adapted{}, Rule{}, "no connection had more than 10 packets in flight without a loss yet"},
		{tcp.InitCwnd, holds(13), Adapted{}, Rule{}, "at most 13 packets in flight together without a loss, and srtt is 1.00 times the least round-trip time, which leaves 13: a window is raised from 15 on"},
		{tcp.InitCwnd, holds(400), Adapted{}, Rule{Bounds: params(tcp.InitCwnd, 8)}, "the rule's bound, 8 packets, is not more than the kernel's window"},

		{tcp.InitRwnd, measured(60, 5), Adapted{}, Rule{}, "the least round-trip time is not known"},
		{tcp.InitRwnd, holds(400), Adapted{}, Rule{}, "no connection of the path has received enough"},
		{tcp.InitRwnd, receives(2), Adapted{}, Rule{}, "50ms (2.0 Mbit/s): that is 34 packets, and a window is raised from 66 on (the kernel announces 44 at first)"},

		{tcp.SynRTO, measured(700, 100), Adapted{}, Rule{}, "srtt 700ms + 4 x rttvar 100ms is 1.1s: the longest adapted timeout, 500ms, is less than 2.5 times that"},
		{tcp.SynRTO, measured(10, 1), Adapted{}, Rule{Bounds: params(tcp.SynRTO, 800)}, "the rule's bound, 800ms, is longer than any adapted timeout (500ms at most)"},
		{tcp.SynRTO, measured(10, 1), Adapted{}, Rule{Set: params(tcp.SynCount, 3)}, "the rule sets syn_count"},
		{tcp.SynAckRTO, measured(240, 5), Adapted{SynAckRTO: 500}, Rule{}, "500ms, is less than 2 times that"},

		{tcp.RTOMin, steady(1.2, 0.1, 0), Adapted{}, Rule{}, "the next shorter value needs"},
		{tcp.RTOMin, steady(21, 10, 5), Adapted{}, Rule{}, "the longest adapted value, 100ms, is less than 2 times that"},
		{tcp.RTOMin, steady(1.2, 0.1, 5), Adapted{}, Rule{Bounds: params(tcp.RTOMin, 150_000)}, "the rule's bound, 150ms, is longer than any adapted value (100ms at most)"},
		{tcp.RTOMin, barredRTO, Adapted{RTOMin: 50}, Rule{}, "100ms and less are not used for another 7m0s, because of spurious retransmissions"},

		{tcp.DelackMax, measured(10, 1), Adapted{}, Rule{}, "no connection has been sampled yet"},
		{tcp.DelackMax, changed(waited(1000, 0.5), far), Adapted{}, Rule{}, "the least round-trip time, 45ms, is not shorter than the kernel's delay of 40ms"},
		{tcp.DelackMax, waited(1000, 0.01), Adapted{}, Rule{}, "peers waited for a delayed ACK 10 times in 1000 received segments: a shorter delay needs 100 times or more"},
		{tcp.DelackMax, changed(waited(1000, 0.5), func(m *estimate.Path) { m.Delack.Counts[0][0].Received = 40 }), Adapted{}, Rule{}, "have received 40 small segments: 100 are needed"},
		{tcp.DelackMax, waited(1000, 0.5), Adapted{}, Rule{Bounds: params(tcp.DelackMax, 30_000)}, "the rule's bound, 30ms, is longer than any adapted value (16ms at most)"},
		{tcp.DelackMax, barredDelack, Adapted{}, Rule{}, "16ms and less are not used for another 7m0s, because of more ACKs"},

		{tcp.CwndClamp, measured(2, 1), Adapted{}, Rule{}, "no connection has been sampled yet"},
		{tcp.CwndClamp, changed(crowded(50), far), Adapted{}, Rule{}, "the least round-trip time is 45ms: there are clamps up to 10ms"},
		{tcp.CwndClamp, changed(crowded(50), func(m *estimate.Path) { m.Incast.QueueAt = adaptNow - 3*minute }), Adapted{Clamp: 50}, Rule{}, "the latest queue is 3m0s old: it is used for 2m0s"},
		{tcp.CwndClamp, incast(estimate.Incast{}), Adapted{}, Rule{}, "that the path limits: 200 packets in 3 samples are needed"},
		{tcp.CwndClamp, incast(estimate.Incast{Now: estimate.Aggregate{RTT: 900, Flows: 12}}), Adapted{}, Rule{}, "round trips took 0.90 ms, 0.0% of the packets were lost, and the number of connections was 12; from 1.40 ms on there is a clamp"},
		{tcp.CwndClamp, incast(estimate.Incast{Now: estimate.Aggregate{RTT: 200, Flows: 12, Loss: 0.02}}), Adapted{}, Rule{}, "2.0% of the packets were lost, and the number of connections was 12; from 0.30 ms on"},
		{tcp.CwndClamp, incast(estimate.Incast{Now: estimate.Aggregate{RTT: 9000, Flows: 1}}), Adapted{}, Rule{}, "of one connection only: a clamp needs 2"},
		{tcp.CwndClamp, incast(estimate.Incast{Now: estimate.Aggregate{RTT: 9000, Flows: 9}, RetryAt: adaptNow + 3*minute}), Adapted{}, Rule{}, "not tried again for another 3m0s"},

		{tcp.MaxPacingRate, measured(20, 1), Adapted{}, Rule{}, "no policer is suspected: no recent connection lost 1% of its packets"},
		{tcp.MaxPacingRate, changed(measured(1, 1), func(m *estimate.Path) { m.MinRTT.Half = 300 }), Adapted{}, Rule{}, "the least round-trip time is 300µs: a policer is not searched for on paths of less than 500µs"},
		{tcp.MaxPacingRate, policer(estimate.Policer{Uncounted: true}), Adapted{}, Rule{}, "it was not counted"},
		{tcp.MaxPacingRate, policer(estimate.Policer{RetryAt: adaptNow + 4*minute}), Adapted{}, Rule{}, "the next search begins in 4m0s"},
		{tcp.MaxPacingRate, policer(estimate.Policer{Free: estimate.FreeConnections{Count: 1, Sent: 1000, Lost: 30}}), Adapted{}, Rule{}, "1 of the 3 connections that are needed to suspect a policer lost 3.0%"},
		{tcp.MaxPacingRate, policer(estimate.Policer{Free: estimate.FreeConnections{Count: 3, Sent: 1000, Lost: 30, Rates: [3]uint32{1e6, 3e6, 2e6}}}), Adapted{}, Rule{}, "one was 3.0 times as fast as another (at most 1.6)"},
		{tcp.MaxPacingRate, policed(estimate.PolicerFound, 100_000, 100_000, 110_000), Adapted{}, Rule{}, "the rate, 0.8 Mbit/s, is below the least that is used, 1.0 Mbit/s"},
		{tcp.MaxPacingRate, policed(estimate.PolicerFound, 5_800_000, 5_800_000, 6_100_000), Adapted{}, Rule{Limit: RateLimit{Total: 1e6}}, "the rule has a rate_limit"},

		{tcp.PeerOption, changed(measured(10, 1), func(m *estimate.Path) { m.Peer = &estimate.Peer{LostAt: adaptNow - 3*hour} }), Adapted{}, Rule{}, "3h0m0s ago: the option is not sent for a day"},
	} {
		c.rule.Learn, c.rule.Adapt = &Learn{}, []tcp.Field{c.field}
		in := &Input{Rule: &c.rule, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, Adapted: c.was, Now: adaptNow}
		if d := Decide(in); d.Policy.Adapted != 0 {
			t.Errorf("%s, %q: a value is adapted", c.field, c.want)
		}
		if got := in.WhyKernel(c.field); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q\nhas no %q", c.field, got, c.want)
		}
	}
}

// If the peer option leaves RTO_MIN to the kernel, the reason says why.
func TestWhyPeerOptionLeavesRTOMin(t *testing.T) {
	for want, m := range map[string]*estimate.Path{
		"left to the kernel: 3 of the 10 samples that are needed":                                                                   changed(measured(10, 1), func(m *estimate.Path) { m.RTTs = 3 }),
		"left to the kernel: srtt 41ms + 4 x rttvar 30ms is 160ms above the least round-trip time: 100ms is less than 2 times that": steady(41, 30, 0),
	} {
		in := &Input{Rule: &Rule{Adapt: []tcp.Field{tcp.PeerOption}}, Metrics: m, Now: adaptNow}
		a := in.Rule.Adapted(m, nil, Adapted{}, adaptNow)
		if got := in.WhyAdapted(tcp.PeerOption, a); a.Peer != 200 || !strings.Contains(got, want) {
			t.Errorf("%d: %q\nhas no %q", a.Peer, got, want)
		}
	}
}

// What keeps connections from all adapted values is the reason, or a part of it.
func TestWhyKernelOfAllFields(t *testing.T) {
	r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.SynRTO}}
	for want, in := range map[string]*Input{
		"connections did worse than the hold-out":                                          {LeftToDefault: true},
		"nothing is set in mode observe; otherwise it would be 125 ms":                     {Observe: true},
		"all are in the hold-out; otherwise it would be 125 ms":                            {NotRolledOut: 1},
		"the latest samples lead to 125 ms, which connections get after the next decision": {},
	} {
		in.Rule, in.Metrics, in.Now = r, measured(10, 1), adaptNow
		if got := in.WhyKernel(tcp.SynRTO); !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
}

// Losses of raised windows are the reason of a smaller window, and of none.
func TestWhyFirstWindows(t *testing.T) {
	x := transfers{now: adaptNow}
	x.add(64, 700, 30)
	in := &Input{Rule: &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.InitCwnd}}, Metrics: holds(400), First: &x.f, Now: x.now + 40e9}
	a := in.Rule.Adapted(in.Metrics, in.First, Adapted{}, in.Now)
	if got, want := in.WhyAdapted(tcp.InitCwnd, a), "at most 32 for each: connections had 400 in flight together without a loss; srtt is 1.00 times the least round-trip time; raised windows were halved 40s ago, because 46.9% of their packets were lost: they are bounded by 32 packets now"; !strings.Contains(got, want) {
		t.Errorf("%q has no %q", got, want)
	}
	in.Metrics.Sent, in.Metrics.Lost = 10_000, 35
	if got, want := in.WhyKernel(tcp.InitCwnd), "0.35% of the recent packets were lost (a window needs less than 0.2%); raised windows were halved 40s ago"; !strings.HasPrefix(got, want) {
		t.Errorf("%q has no %q", got, want)
	}
	in.Metrics = holds(400)
	x.add(32, 700, 16)
	x.add(16, 700, 8)
	in.Now = x.now + 20e9
	if got, want := in.WhyKernel(tcp.InitCwnd), "50.0% of the packets of the latest raised windows were lost, and half of such a window is less than 15 packets: no window is raised for another 40s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if a := in.Rule.Adapted(in.Metrics, in.First, Adapted{}, in.Now); a != (Adapted{}) {
		t.Errorf("adapted %+v", a)
	}
}

// Without somebody who asks, no reason is written: nothing is allocated.
func TestReasonsAreNotWrittenUnasked(t *testing.T) {
	r := &Rule{Learn: &Learn{}, Adapt: Adaptive}
	for _, m := range []*estimate.Path{nil, holds(13), measured(700, 100), receives(2), crowded(0), waited(1000, 0.01), steady(21, 10, 5)} {
		if n := testing.AllocsPerRun(100, func() { r.Adapted(m, nil, Adapted{}, adaptNow) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}
