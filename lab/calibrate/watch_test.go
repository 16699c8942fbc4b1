package calibrate

import (
	"encoding/json"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSharesOfProcessors(t *testing.T) {
	const before = "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 50 0 50 400 0 0 0 0 0 0\ncpu1 50 0 50 400 0 0 0 0 0 0\nintr 1 2 3\n"
	const after = "cpu  120 0 110 850 10 2 8 10 5 0\ncpu0 70 0 60 400 0 2 8 10 5 0\ncpu1 50 0 50 450 10 0 0 0 0 0\nintr 1 2 3\n"
	var h Host
	h.account(parseStat(before), parseStat(after))
	// 110 ticks: 60 idle, 10 of steal, 10 in interrupts; the second processor did nothing.
	for name, v := range map[string][2]float64{
		"busy": {h.Busy, 50. / 110}, "steal": {h.Steal, 10. / 110}, "softirq": {h.Softirq, 10. / 110}, "busiest": {h.Busiest, 1},
	} {
		if math.Abs(v[0]-v[1]) > 1e-9 {
			t.Errorf("%s is %g, want %g", name, v[0], v[1])
		}
	}
	var gone Host
	gone.account(parseStat(before), parseStat(after)[:2])
	if gone != (Host{}) {
		t.Errorf("shares with a processor gone: %+v", gone)
	}
}

func TestStallsAreLongOversleeps(t *testing.T) {
	var h Host
	for _, d := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 41 * time.Millisecond, 31 * time.Millisecond} {
		h.slept(d)
	}
	if h.Stalls != 2 || h.Longest != 40*time.Millisecond || h.Stalled != 70*time.Millisecond {
		t.Errorf("%+v, want stalls of 40 and 30 ms", h)
	}
}

func TestSane(t *testing.T) {
	quiet := Host{Elapsed: 10 * time.Second, Busy: 0.89, Steal: 0.04, Softirq: 0.5, Stalls: 2, Longest: 400 * time.Millisecond, Stalled: 450 * time.Millisecond}
	if err := quiet.Sane(DefaultLimits); err != nil {
		t.Errorf("within limits: %v", err)
	}
	for want, change := range map[string]func(*Host){
		"91 % busy":                       func(h *Host) { h.Busy = 0.91 },
		"other virtual machines took 6 %": func(h *Host) { h.Steal = 0.06 },
		"stalled for 501ms":               func(h *Host) { h.Longest = 501 * time.Millisecond },
		"600ms of 10s, in 9":              func(h *Host) { h.Stalled, h.Stalls = 600*time.Millisecond, 9 },
	} {
		h := quiet
		change(&h)
		if err := h.Sane(DefaultLimits); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Sane() = %v, want %q in it", err, want)
		}
	}
	busy := Host{Elapsed: time.Second, Busy: 1}
	limits := DefaultLimits
	limits.Busy = 1
	if err := busy.Sane(limits); err != nil {
		t.Errorf("without a limit: %v", err)
	}
	if err := (Host{}).Sane(DefaultLimits); err != nil {
		t.Errorf("of nothing: %v", err)
	}
}

// used is the processor time that this process got.
func used(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestWatchSeesBusyProcessors makes all processors busy, as far as a container's
// quota lets it: the watch sees at least what this process got.
func TestWatchSeesBusyProcessors(t *testing.T) {
	before := used(t)
	w := StartWatch()
	const d = 400 * time.Millisecond
	var burners sync.WaitGroup
	end := time.Now().Add(d)
	for range len(processors()) - 1 {
		burners.Go(func() {
			for time.Now().Before(end) {
			}
		})
	}
	burners.Wait()
	h := w.Stop()
	// The counters have ticks of 10 ms.
	const ticks = 0.05
	got := (used(t) - before).Seconds() / d.Seconds() / float64(len(processors())-1)
	if h.Elapsed < d || h.Busy < 0.8*got-ticks || h.Busy > 1 || h.Busiest < h.Busy-ticks {
		t.Errorf("after %s with %.0f %% of all processors: %+v", d, 100*got, h)
	}
	b, err := json.Marshal(h)
	if err != nil || !strings.Contains(string(b), `"busy":`) || !strings.Contains(string(b), `"longest_ns":`) {
		t.Errorf("as JSON: %s, %v", b, err)
	}
}
