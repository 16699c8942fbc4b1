package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// holds are the metrics of a path of 50 ms whose connections had the given slow start
// threshold until a second ago.
func holds(ssthresh uint64) *estimate.Path {
	m := measured(60, 5)
	m.MinRTT.Min(adaptNow, 50_000, time.Minute)
	m.Ssthresh.Max(adaptNow, ssthresh, time.Minute)
	m.SsthreshAt = adaptNow - int64(time.Second)
	return m
}

func TestAdaptInitialWindow(t *testing.T) {
	with := func(m *estimate.Path, change func(m *estimate.Path)) *estimate.Path {
		change(m)
		return m
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
		{"never in slow start long enough", measured(60, 5), nil, Adapted{}, Adapted{}},
		{"a queue of eight round trips", with(holds(400), func(m *estimate.Path) { m.SRTT = 400_000 }), nil, Adapted{}, Adapted{InitCwnd: 64, Window: 200}},
		{"a queue of 16", with(holds(400), func(m *estimate.Path) { m.SRTT = 800_000 }), nil, Adapted{}, Adapted{}},
		{"a data centre", with(holds(400), func(m *estimate.Path) { m.MinRTT.Min(adaptNow, 200, time.Minute) }), nil, Adapted{}, Adapted{}},
		{"a minute ago", with(holds(400), func(m *estimate.Path) { m.SsthreshAt = adaptNow - int64(windowAge) - 1 }), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{}},
		{"the clock was set back", with(holds(400), func(m *estimate.Path) { m.SsthreshAt = adaptNow + int64(time.Hour) }), nil, Adapted{}, Adapted{}},
		{"a little more than in use", holds(590), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 64, Window: 400}},
		{"a little less", holds(330), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 64, Window: 400}},
		{"less", holds(300), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 64, Window: 300}},
		{"more", holds(700), nil, Adapted{InitCwnd: 64, Window: 400}, Adapted{InitCwnd: 64, Window: 700}},
		{"first windows lost packets", holds(400), &FirstWindows{most: 32, cutAt: adaptNow}, Adapted{}, Adapted{InitCwnd: 32, Window: 400}},
		{"even small ones did", holds(400), &FirstWindows{most: 10, cutAt: adaptNow}, Adapted{InitCwnd: 14, Window: 400}, Adapted{}},
		{"a minute later", holds(400), &FirstWindows{most: 10, cutAt: adaptNow - int64(windowPause)}, Adapted{}, Adapted{InitCwnd: 15, Window: 400}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.InitCwnd}}
			d := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, First: c.first, Adapted: c.was, Now: adaptNow})
			if got := AdaptedIn(&d.Policy); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if !d.Policy.CountFlows {
				t.Error("the path's connections are not counted")
			}
			if want := c.metrics.SsthreshAt + int64(windowAge); c.want.Window != 0 && d.Policy.WindowExpires != want {
				t.Errorf("expires at %d, want %d", d.Policy.WindowExpires, want)
			}
		})
	}
}

// raised is a connection with an initial window, of which packets were lost.
func raised(window, lost uint16) *tcp.Sample {
	return &tcp.Sample{At: adaptNow, InitCwnd: window, InitLost: lost}
}

// A path that holds less than before loses packets of the first windows: after few
// connections these are small enough.
func TestFirstWindowsFollowASmallerPath(t *testing.T) {
	const holds = 20 // packets of a first window
	var f FirstWindows
	for range 20 {
		f.Observe(raised(64, 0), 0)
	}
	sent, lost := 0, 0
	for i := range 40 {
		window := f.bound(adaptNow)
		if window == 0 {
			window = 10
		}
		over := max(0, int(window)-holds)
		if i >= 10 {
			sent, lost = sent+int(window), lost+over
		}
		f.Observe(raised(window, uint16(over)), 0)
	}
	if share := float64(lost) / float64(sent); share > lossyWindow {
		t.Errorf("after ten connections, %.1f %% of first windows are lost", 100*share)
	}
}

func TestFirstWindowsRecover(t *testing.T) {
	var f FirstWindows
	f.Observe(raised(64, 20), 0)
	if got := f.bound(adaptNow); got != 32 {
		t.Fatalf("after a lossy window of 64: at most %d, want 32", got)
	}
	n := 0
	for ; f.bound(adaptNow) < mostWindow && n < 1000; n++ {
		f.Observe(raised(f.bound(adaptNow), 0), 0)
	}
	if n < 10 || n > 40 {
		t.Errorf("at %d again after %d connections, want 10 to 40", mostWindow, n)
	}
}

// What a path loses whatever its first windows are does not lower them.
func TestFirstWindowsOfALossyPath(t *testing.T) {
	var f FirstWindows
	for range 100 { // 5 % of the packets
		f.Observe(raised(60, 3), 0.05)
	}
	if got := f.bound(adaptNow); got != mostWindow {
		t.Errorf("at most %d, want %d", got, mostWindow)
	}
	f.Observe(&tcp.Sample{InitLost: 5}, 0) // of a window that was not raised
	if got := f.bound(adaptNow); got != mostWindow {
		t.Errorf("a connection with the kernel's window: at most %d, want %d", got, mostWindow)
	}
}

func TestWhyWindow(t *testing.T) {
	got := WhyAdapted(tcp.InitCwnd, Adapted{InitCwnd: 64, Window: 400}, holds(400))
	if !strings.HasPrefix(got, "400 packets (greatest ssthresh") || !strings.Contains(got, "at most 64 for each; srtt is 1.2 times") {
		t.Error(got)
	}
}
