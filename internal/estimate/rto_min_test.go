package estimate

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// sender is a connection of 100 packets with an RTO_MIN in milliseconds.
func sender(at int64, ms, dsacks uint32) *tcp.Sample {
	return &tcp.Sample{Kind: tcp.KindClose, At: at, Duration: time.Second, DataSegsOut: 100, RTOMin: time.Duration(ms) * time.Millisecond, DSACKs: dsacks}
}

// run lets n connections end, one a second, and returns when the last did.
func run(r *RTOMin, at int64, n int, ms, dsacks uint32) int64 {
	for range n {
		at += int64(time.Second)
		r.observe(sender(at, ms, dsacks))
	}
	return at
}

const (
	at200 = iota // indices into RTOMins
	at100
	at50
	at25
)

// A value is used once the next longer one has been shown to be safe.
func TestRTOMinStepByStep(t *testing.T) {
	var r RTOMin
	at := run(&r, t0, 19, 200, 0)
	if !r.Allows(at200, at200, at, nil) || r.Allows(at100, at200, at, nil) {
		t.Errorf("1900 packets: %+v", r)
	}
	at = run(&r, at, 2, 200, 0)
	if !r.Allows(at100, at200, at, nil) || r.Allows(at50, at200, at, nil) {
		t.Errorf("2100 packets: %+v", r)
	}
	if at = run(&r, at, 21, 100, 0); !r.Allows(at50, at100, at, nil) || r.Allows(at25, at100, at, nil) {
		t.Errorf("2100 packets at 100 ms: %+v", r)
	}
	if !r.Allows(at50, at50, at, nil) || !r.Allows(at50, at25, at, nil) {
		t.Errorf("a value in use, or a longer one, needs no more: %+v", r)
	}
	// More than a few spurious retransmissions, and nothing shorter is used.
	if run(&r, at, 5, 50, 0); r.Allows(at25, at50, at, nil) {
		t.Errorf("%+v", r)
	}
}

// What is not enough: packets within less than 10 s, one long transfer, values of others, and
// nothing sent.
func TestRTOMinNeedsProof(t *testing.T) {
	for name, observe := range map[string]func(r *RTOMin){
		"in no time": func(r *RTOMin) {
			for range 1000 {
				r.observe(sender(t0, 200, 0))
			}
		},
		"one long transfer": func(r *RTOMin) {
			s := sender(t0, 200, 0)
			s.DataSegsOut = 1_000_000
			r.observe(s)
			r.observe(sender(t0+int64(time.Minute), 200, 0))
		},
		"spurious retransmissions": func(r *RTOMin) { run(r, t0, 500, 200, 1) },
		"0.1 %": func(r *RTOMin) {
			for i := range 500 {
				r.observe(sender(t0+int64(i)*1e9, 200, uint32(max(0, i%10-8))))
			}
		},
		"an application's value": func(r *RTOMin) { run(r, t0, 500, 150, 0) },
		"receivers": func(r *RTOMin) {
			for i := range 500 {
				s := sender(t0+int64(i)*1e9, 200, 0)
				s.DataSegsOut = 0
				r.observe(s)
			}
		},
	} {
		var r RTOMin
		if observe(&r); r.Allows(at100, at200, max(t0, r.At), nil) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A value that causes spurious retransmissions is barred, with all shorter ones: for 10 minutes,
// then for twice as long.
func TestRTOMinIsBarred(t *testing.T) {
	var r RTOMin
	at := run(&r, t0, 30, 200, 0)
	at = run(&r, at, 30, 100, 0)
	run(&r, at, 1, 50, 1)
	if r.Until != 0 {
		t.Errorf("one spurious retransmission: %+v", r)
	}
	for n, want := range []time.Duration{10 * time.Minute, 20 * time.Minute, 40 * time.Minute} {
		at = run(&r, at, 3, 50, 1)
		if r.Until == 0 || time.Duration(r.For) != want {
			t.Fatalf("bar %d is for %s, want %s", n+1, r.For, want)
		}
		if r.Allows(at50, at50, at, nil) || r.Allows(at25, at25, at, nil) || !r.Allows(at100, at50, at, nil) {
			t.Errorf("bar %d: %+v", n+1, r)
		}
		// Connections that began before do not prolong it.
		until := r.Until
		if run(&r, at, 10, 50, 5); r.Until != until {
			t.Errorf("bar %d was prolonged: %+v", n+1, r)
		}
		at = until + 1
		run(&r, at, 21, 100, 0)
		if !r.Allows(at50, at100, at, nil) {
			t.Errorf("after bar %d: %+v", n+1, r)
		}
	}
	at += int64(3 * time.Hour)
	if run(&r, at, 3, 50, 1); r.For != 10*time.Minute {
		t.Errorf("after three hours, it is barred for %s", r.For)
	}
}

// Spurious retransmissions count in the same way if the kernel found them, and once if the peer reports them after a sample.
func TestRTOMinCountsUndoneTimeouts(t *testing.T) {
	undone := func(at int64, dsacks uint32, undone int16) *tcp.Sample {
		s := sender(at, 50, dsacks)
		s.Undone = undone
		return s
	}
	var r RTOMin
	at := t0
	for range 3 {
		at += int64(time.Second)
		r.observe(undone(at, 0, 1))
	}
	if r.Until == 0 || r.Allows(at50, at50, at, nil) {
		t.Errorf("three without reports: %+v", r)
	}
	r = RTOMin{}
	r.observe(undone(t0, 0, 1))
	r.observe(undone(t0+1, 1, -1))
	r.observe(undone(t0+2, 0, -1))
	if c := r.Counts[at50]; r.Until != 0 || c.Sent != 300 || c.Resent != 1 {
		t.Errorf("one that is reported later: %+v", r)
	}
}

func TestRTOMinIsBarredForADayAtMost(t *testing.T) {
	var r RTOMin
	for at := t0; at < t0+int64(30*24*time.Hour); at = r.Until + 1 {
		at = run(&r, at, 3, 50, 2)
		if r.For > 24*time.Hour || r.Until <= at {
			t.Fatalf("%+v", r)
		}
	}
	if r.For != 24*time.Hour {
		t.Errorf("after a month: %s", r.For)
	}
}

// The kernel's value is never barred: there is nothing safer.
func TestRTOMinOfTheKernelIsNotBarred(t *testing.T) {
	var r RTOMin
	if at := run(&r, t0, 100, 200, 50); r.Until != 0 || !r.Allows(at200, at200, at, nil) {
		t.Errorf("%+v", r)
	}
}

// Evidence fades with time, and with packets.
func TestRTOMinEvidenceFades(t *testing.T) {
	var r RTOMin
	at := run(&r, t0, 30, 200, 0)
	r.observe(sender(at+int64(10*time.Hour), 200, 0))
	if r.Allows(at100, at200, r.At, nil) {
		t.Errorf("3000 packets ten hours ago: %+v", r)
	}
	at = run(&r, r.At, 10_000, 200, 0)
	if c := r.Counts[at200]; c.Sent > spuriousMemory {
		t.Errorf("%+v", c)
	}
	if run(&r, at, 30, 200, 1); r.Allows(at100, at200, r.At, nil) {
		t.Errorf("a million packets without, then 30 of 3000: %+v", r)
	}
}

// The kernel rounds up to its clock.
func TestRTOMinIndex(t *testing.T) {
	for us, want := range map[time.Duration]int{
		200_000: at200, 199_980: at200, 100_000: at100, 99_990: at100, 52_000: at50, 50_000: at50, 60_000: at50,
		28_000: at25, 26_664: at25, 30_000: at25, 12_000: 4, 20_000: 4, 9_999: 4,
		0: -1, 8_000: -1, 300_000: -1, 150_000: -1, 40_000: -1, 190_000: -1,
	} {
		if got := rtoMinIndex(us * time.Microsecond); got != want {
			t.Errorf("%d us is number %d, want %d", us, got, want)
		}
	}
}

func TestShowsTimeouts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *tcp.Sample)
		want   bool
	}{
		"requests":           {func(*tcp.Sample) {}, true},
		"few packets":        {func(s *tcp.Sample) { s.DataSegsOut = 9 }, false},
		"no round-trip time": {func(s *tcp.Sample) { s.SRTT = 0 }, false},
		"its own RTO_MIN":    {func(s *tcp.Sample) { s.RTOMin = time.Second }, false},
	} {
		s := sender(t0, 200, 0)
		s.SRTT = 1000
		if c.change(s); ShowsTimeouts(s) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
}
