package policy

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// holds are the metrics of a path of 50 ms without a queue. Until a second ago, connections had
// that many packets in flight together.
func holds(packets uint64) *estimate.Path {
	m := measured(50, 5)
	m.MinRTT.Min(adaptNow, 50_000, time.Minute)
	m.Carried.Max(adaptNow, packets, time.Minute)
	m.CarriedAt = adaptNow - int64(time.Second)
	return m
}

func TestAdaptInitialWindow(t *testing.T) {
	with := func(m *estimate.Path, change func(m *estimate.Path)) *estimate.Path {
		change(m)
		return m
	}
	srtt := func(ratio float32) *estimate.Path {
		return with(holds(400), func(m *estimate.Path) { m.SRTT = ratio * 50_000 })
	}
	for _, c := range []struct {
		name    string
		metrics *estimate.Path
		first   *FirstWindows
		was     Adapted
		want    Adapted // of these two fields
	}{
		{"a path that holds 400 packets", holds(400), nil, Adapted{}, Adapted{InitCwnd: 64, Window: 400}},
		{"30 packets", holds(30), nil, Adapted{}, Adapted{InitCwnd: 30, Window: 30}},
		{"no more than the kernel's window", holds(10), nil, Adapted{}, Adapted{}},
		{"a little more", holds(13), nil, Adapted{}, Adapted{}},
		{"a little more, in use", holds(13), nil, Adapted{InitCwnd: 15, Window: 15}, Adapted{InitCwnd: 15, Window: 15}},
		{"nothing shown", measured(60, 5), nil, Adapted{}, Adapted{}},
		{"it loses packets", with(holds(400), func(m *estimate.Path) { m.Sent, m.Lost = 10_000, 100 }), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{}},
		{"a queue", srtt(1.4), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{}},
		{"a shorter queue", srtt(1.32), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 40, Window: 40}},
		{"a small queue", srtt(1.2), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 64, Window: 200}},
		{"a small queue, after a larger one", srtt(1.2), nil, Adapted{}, Adapted{}},
		{"a very small queue", srtt(1.1), nil, Adapted{}, Adapted{InitCwnd: 64, Window: 333}},
		{"a very small queue, in use", srtt(1.1), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 64, Window: 400}},
		{"no queue", srtt(1.04), nil, Adapted{}, Adapted{InitCwnd: 64, Window: 400}},
		{"a data centre", with(holds(400), func(m *estimate.Path) { m.MinRTT.Min(adaptNow, 200, time.Minute) }), nil, Adapted{}, Adapted{}},
		{"a minute ago", with(holds(400), func(m *estimate.Path) { m.CarriedAt = adaptNow - int64(windowAge) - 1 }), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{}},
		{"the clock was set back", with(holds(400), func(m *estimate.Path) { m.CarriedAt = adaptNow + int64(time.Hour) }), nil, Adapted{}, Adapted{}},
		{"a little more than in use", holds(590), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 64, Window: 400}},
		{"a little less", holds(330), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 64, Window: 400}},
		{"less", holds(300), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 64, Window: 300}},
		{"more", holds(700), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 64, Window: 700}},
		{"first windows lost packets", holds(400), &FirstWindows{Most: 32, ChangedAt: adaptNow}, Adapted{}, Adapted{InitCwnd: 32, Window: 400}},
		{"even small ones did", holds(400), &FirstWindows{Most: 10, ChangedAt: adaptNow}, Adapted{InitCwnd: 14, Window: 400}, Adapted{}},
		{"a minute later", holds(400), &FirstWindows{Most: 10, ChangedAt: adaptNow - int64(windowPause)}, Adapted{}, Adapted{InitCwnd: 15, Window: 400}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.InitCwnd}}
			d := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, First: c.first, Adapted: c.was, Now: adaptNow})
			if got := AdaptedIn(&d.Policy); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if want := adaptNow - int64(time.Second) + int64(windowAge); c.want.Window != 0 && d.Policy.WindowExpires != want {
				t.Errorf("expires at %d, want %d", d.Policy.WindowExpires, want)
			}
		})
	}
}

// A ratio of round-trip times that varies around a bound does not make the policy alternate.
func TestAdaptInitialWindowIsSteady(t *testing.T) {
	for ratio := float32(1); ratio < 2; ratio += 0.05 {
		was, changes := Adapted{}, 0
		for i := range 40 {
			m := holds(300)
			m.SRTT = 50_000 * ratio * (1 + 0.08*float32(i%2))
			r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.InitCwnd}}
			if now := r.Adapted(m, nil, was, adaptNow); now != was {
				was, changes = now, changes+1
			}
		}
		if changes > 2 {
			t.Errorf("srtt of %.2f to %.2f times the least: %d changes", ratio, 1.08*ratio, changes)
		}
	}
}

// The window after the first round trip has the same conditions as the initial one, and another bound.
func TestAdaptResumeWindow(t *testing.T) {
	filledPath := holds(400)
	filledPath.SRTT = 2 * 50_000
	for _, c := range []struct {
		name    string
		metrics *estimate.Path
		first   *FirstWindows
		adapt   []tcp.Field
		want    Adapted
	}{
		{"both", holds(4000), nil, []tcp.Field{tcp.InitCwnd, tcp.ResumeCwnd}, Adapted{InitCwnd: 64, ResumeCwnd: 1000, Window: 4000}},
		{"alone", holds(400), nil, []tcp.Field{tcp.ResumeCwnd}, Adapted{ResumeCwnd: 400, Window: 400}},
		{"it lost packets", holds(400), &FirstWindows{Most: 200, ChangedAt: adaptNow}, []tcp.Field{tcp.InitCwnd, tcp.ResumeCwnd}, Adapted{InitCwnd: 64, ResumeCwnd: 200, Window: 400}},
		{"a filled path", filledPath, nil, []tcp.Field{tcp.ResumeCwnd}, Adapted{}},
	} {
		r := &Rule{Learn: &Learn{}, Adapt: c.adapt}
		if got := r.Adapted(c.metrics, c.first, Adapted{}, adaptNow); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	if (Adapted{ResumeCwnd: 300}).Safer(Adapted{ResumeCwnd: 200}) || !(Adapted{ResumeCwnd: 100}).Safer(Adapted{ResumeCwnd: 200}) {
		t.Error("a smaller window is the safer one")
	}
}

func TestWhyWindow(t *testing.T) {
	a := Adapted{InitCwnd: 64, Window: 400}
	want := "400 packets are shared by the path's connections, at most 64 for each: connections had 590 in flight together without a loss; srtt is 1.00 times the least round-trip time"
	if got := whyAdapted(tcp.InitCwnd, a, holds(590)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestAdaptBounds(t *testing.T) {
	m := holds(400)
	m.ReceiveRate.Max(adaptNow, 1e9, time.Minute)
	r := &Rule{Learn: &Learn{}, Adapt: fromMetrics}
	r.Bounds.Set(tcp.InitCwnd, 128)
	r.Bounds.Set(tcp.ResumeCwnd, 300)
	r.Bounds.Set(tcp.InitRwnd, 2000)
	r.Bounds.Set(tcp.SynRTO, 500)
	m.SRTT, m.RTTVar = 52_000, 2000
	want := Adapted{SynRTO: 500, SynAckRTO: 250, InitCwnd: 128, ResumeCwnd: 300, Window: 400, InitRwnd: 2000}
	if got := r.Adapted(m, nil, Adapted{}, adaptNow); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
