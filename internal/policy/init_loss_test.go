package policy

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// transfers gives samples of connections to FirstWindows. Each takes 100 ms and begins when the
// one before ends; now is the end of the latest, in nanoseconds.
type transfers struct {
	now int64
	f   FirstWindows
}

// add observes a connection that sent n packets, began with an initial window of window packets,
// and lost some of these.
func (x *transfers) add(window uint16, n, lost uint32) {
	x.now += int64(100 * time.Millisecond)
	x.f.Observe(new(Rule), &tcp.Sample{
		At: x.now, Duration: 100 * time.Millisecond, InitCwnd: window, InitLost: uint16(lost),
		DataSegsOut: n + lost, Retrans: lost, Lost: lost,
	})
}

// A path that holds less than before loses packets of the first windows: after few connections
// these are small enough, whatever the size of the transfers.
func TestFirstWindowsFollowASmallerPath(t *testing.T) {
	const holds = 20 // packets of a first window
	for _, size := range []uint32{40, 64, 700, 10_000} {
		x := transfers{now: adaptNow}
		for range 20 {
			x.add(64, size, 0)
		}
		sent, lost := uint32(0), uint32(0)
		for i := range 40 {
			window := max(kernelWindow, min(x.f.bound(x.now), mostWindow))
			over := max(holds, min(uint32(window), size)) - holds
			if i >= 10 {
				sent, lost = sent+uint32(window), lost+over
			}
			x.add(window, size, over)
		}
		if share := float64(lost) / float64(sent); share > lossyWindow {
			t.Errorf("transfers of %d packets: after ten connections, %.1f %% of first windows are lost", size, 100*share)
		}
	}
}

// A jump that loses packets halves the window after the first round trip. The initial window stays until that is smaller.
func TestFirstWindowsOfAJump(t *testing.T) {
	x := transfers{now: adaptNow}
	jump := func(to uint16, lost uint32) {
		x.now += int64(100 * time.Millisecond)
		x.f.Observe(new(Rule), &tcp.Sample{At: x.now, Duration: 100 * time.Millisecond, InitCwnd: 64, ResumeCwnd: to, InitLost: uint16(lost),
			DataSegsOut: 2000 + lost, Retrans: lost, Lost: lost})
	}
	jump(800, 0)
	jump(800, 10) // one in a hundred
	if got := x.f.bound(x.now); got != endWindow {
		t.Fatalf("after few losses: at most %d", got)
	}
	for want, to := uint16(400), uint16(800); want > 40; want, to = want/2, want {
		jump(to, uint32(to)/2)
		if got := x.f.bound(x.now); got != want {
			t.Fatalf("after a lossy jump to %d: at most %d, want %d", to, got, want)
		}
	}
	if initial := mostFirst(&x.f, mostWindow, x.now, nil); initial != 50 {
		t.Errorf("the initial window is bounded by %d", initial)
	}
	later := &tcp.Sample{At: x.now, ResumeCwnd: 300, InitLost: 200, DataSegsOut: 400, Lost: 200, Retrans: 200, Flags: tcp.FlagLater}
	if sent, lost := new(Rule).FirstWindow(later); sent != 0 || lost != 0 {
		t.Errorf("an interval that is not the first has %d, %d", sent, lost)
	}
}

// A window that the rule sets is its author's: what such jumps lose neither counts nor bounds the initial windows, nor is it what the
// path loses anyway.
func TestFirstWindowsOfAJumpThatIsSet(t *testing.T) {
	x, r := transfers{now: adaptNow}, new(Rule)
	r.Set.Set(tcp.ResumeCwnd, 800)
	x.add(64, 700, 30) // halved to 32
	before := x.f
	for range 20 {
		x.now += int64(100 * time.Millisecond)
		s := &tcp.Sample{At: x.now, Duration: 100 * time.Millisecond, InitCwnd: 32, ResumeCwnd: 800, InitLost: 400, DataSegsOut: 2400, Retrans: 400, Lost: 400}
		if sent, lost := r.FirstWindow(s); sent != 32 || lost != 0 || !r.Raised(s) {
			t.Fatalf("of the initial window: %d packets, %d lost", sent, lost)
		}
		x.f.Observe(r, s)
		s.InitCwnd = 0
		if sent, lost := r.FirstWindow(s); sent != 0 || lost != 0 || r.Raised(s) {
			t.Fatalf("without one: %d packets, %d lost", sent, lost)
		}
		x.f.Observe(r, s)
	}
	if got := x.f.bound(x.now); got <= before.Most || got > 40 || x.f.OtherLost != 0 {
		t.Errorf("the bound was %d, is %d, other losses %g", before.Most, got, x.f.OtherLost)
	}
}

func TestFirstWindowsRecover(t *testing.T) {
	x := transfers{now: adaptNow}
	x.add(64, 700, 30)
	if got := x.f.bound(x.now); got != 32 {
		t.Fatalf("after a lossy window of 64: at most %d, want 32", got)
	}
	begun := x.now
	for n := 0; x.f.bound(x.now) < mostWindow && n < 10_000; n++ {
		x.add(x.f.bound(x.now), 700, 0)
	}
	if took := time.Duration(x.now - begun); took < 10*time.Second || took > 60*time.Second {
		t.Errorf("at %d again after %s, want 10 to 60 s", mostWindow, took)
	}
}

// Connections that began before a cut say nothing of the smaller window; neither do those that
// did not use it.
func TestFirstWindowsIgnoreEarlierConnections(t *testing.T) {
	x := transfers{now: adaptNow}
	x.add(64, 700, 30)
	x.add(32, 700, 16)
	x.add(16, 700, 8)
	if got := x.f.bound(x.now); got != 0 {
		t.Fatalf("three lossy windows: at most %d, want none", got)
	}
	old := &tcp.Sample{At: x.now + 1, Duration: time.Minute, InitCwnd: 64, InitLost: 30, DataSegsOut: 730, Retrans: 30, Lost: 30}
	x.f.Observe(new(Rule), old)
	if got := x.f.bound(x.now); got != 0 {
		t.Errorf("an earlier connection ends the pause: at most %d", got)
	}
	x.now += int64(windowPause)
	x.add(smallWindow, 700, 0)
	if got := x.f.bound(x.now); got < smallWindow {
		t.Errorf("a good window after the pause: at most %d", got)
	}
	x.f.Observe(new(Rule), old)
	if got := x.f.bound(x.now); got < smallWindow {
		t.Errorf("an earlier connection cuts after the window grew: at most %d", got)
	}
	x = transfers{now: adaptNow}
	x.add(64, 700, 30)
	for range 100 {
		x.add(32, 15, 0)
	}
	if got := x.f.bound(x.now); got != 32 {
		t.Errorf("transfers of 15 packets raise the bound to %d", got)
	}
}

// What a path loses whatever its first windows are does not lower them.
func TestFirstWindowsOfALossyPath(t *testing.T) {
	x := transfers{now: adaptNow}
	for range 100 { // 5 % of all packets
		x.now += 1e9
		x.f.Observe(new(Rule), &tcp.Sample{At: x.now, Duration: 1e9, InitCwnd: 60, InitLost: 3, DataSegsOut: 1050, Retrans: 50, Lost: 50})
	}
	if got := x.f.bound(x.now); got != endWindow {
		t.Errorf("at most %d, want no bound", got)
	}
	x.f.Observe(new(Rule), &tcp.Sample{At: x.now, DataSegsOut: 100, Lost: 90, InitLost: 5}) // of a window that was not raised
	if got := x.f.bound(x.now); got != endWindow {
		t.Errorf("a connection with the kernel's window: at most %d", got)
	}
}
