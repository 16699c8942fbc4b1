package calibrate

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/link"
)

// good is a path that does what was asked.
func good() Measured {
	forward := ask([]link.Spec{{Delay: 10 * ms, Jitter: 2 * ms, Loss: 0.02, Reorder: 0.01, Rate: 20e6, Queue: link.Queue{Packets: 100}, ECN: 20e3}})
	backward := ask([]link.Spec{{Delay: 5 * ms}})
	times := func(at, wide time.Duration) Spread {
		return Spread{Probes: 100, Min: at - wide, P10: at - wide*8/10, Median: at, P90: at + wide*8/10}
	}
	return Measured{
		From: "a", To: "b", RTT: times(15100*time.Microsecond, 2*ms), Floor: 50 * time.Microsecond,
		Forward: Direction{Asked: forward, Delay: times(10*ms, 2*ms), Sent: 10_000, Lost: 210, Loss: 0.021, Reorder: 0.0102,
			Offered: 24.5e6, Rate: 19.7e6, Queue: 60 * ms, Marked: 0.98, canReorder: true, filled: true},
		Backward: Direction{Asked: backward, Delay: times(5100*time.Microsecond, 10*time.Microsecond), Sent: 10_000},
		Host:     Host{Elapsed: time.Second},
	}
}

func TestCheckNamesEachDeviation(t *testing.T) {
	if err := good().Check(); err != nil {
		t.Fatalf("a good path: %v", err)
	}
	for _, tc := range []struct {
		name, want string
		change     func(*Measured)
	}{
		{"late", "round trip: 17ms", func(m *Measured) { m.RTT.Median = 17 * ms }},
		{"early", "delay backward: 4.4ms measured, 5ms asked: too short", func(m *Measured) { m.Backward.Delay.Median = 4400 * time.Microsecond }},
		{"steady", "jitter forward: ± 0s", func(m *Measured) { m.Forward.Delay.P10, m.Forward.Delay.P90 = 10*ms, 10*ms }},
		{"shaky", "jitter forward: ± 5ms", func(m *Measured) { m.Forward.Delay.P90 = m.Forward.Delay.P10 + 8*ms }},
		{"twice the loss", "loss forward: 4 % of 10000 measured, 2 % asked: too much", func(m *Measured) { m.Forward.Loss = 0.04 }},
		{"no loss", "too little", func(m *Measured) { m.Forward.Loss = 0 }},
		{"loss from nowhere", "loss backward: 0.3 %", func(m *Measured) { m.Backward.Loss = 0.003 }},
		{"reordering from nowhere", "reordering backward", func(m *Measured) { m.Backward.Reorder = 0.02 }},
		{"too much reordering", "reordering forward: 2 %", func(m *Measured) { m.Forward.Reorder = 0.02 }},
		{"no reordering", "too little", func(m *Measured) { m.Forward.Reorder = 0 }},
		{"slow", "rate forward: 18 Mbit/s measured, 20 Mbit/s asked: too slow", func(m *Measured) { m.Forward.Rate = 18e6 }},
		{"fast", "too fast", func(m *Measured) { m.Forward.Rate = 21e6 }},
		{"a burst after a stall", "stalled machine", func(m *Measured) { m.Forward.Rate, m.Forward.Queue = 30e6, 160*ms }},
		{"slow sender", "this machine sends only 19 Mbit/s", func(m *Measured) { m.Forward.Rate, m.Forward.Offered = 18e6, 19e6 }},
		{"short queue", "full queue forward: 40ms measured, 60.6ms asked", func(m *Measured) { m.Forward.Queue = 40 * ms }},
		{"long queue", "too long", func(m *Measured) { m.Forward.Queue = 90 * ms }},
		{"no marks", "marks forward", func(m *Measured) { m.Forward.Marked = 0.1 }},
		{"marks from nowhere", "marks backward", func(m *Measured) {
			m.Backward.Asked.Rate, m.Backward.Offered, m.Backward.Rate, m.Backward.Marked = 1e6, 1.2e6, 1e6, 0.1
		}},
		{"the host as well", "meanwhile other virtual machines", func(m *Measured) { m.Forward.Loss, m.Host.Steal = 0.04, 0.5 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := good()
			tc.change(&m)
			if err := m.Check(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Check() = %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestCheckAcceptsUndecidableDeviations(t *testing.T) {
	for name, change := range map[string]func(*Measured){
		"a few stray packets":    func(m *Measured) { m.Backward.Loss = 0.0003 },
		"a sender that moved":    func(m *Measured) { m.Backward.Reorder = 0.01 },
		"probes too far apart":   func(m *Measured) { m.Forward.Reorder, m.Forward.canReorder = 0, false },
		"a queue never filled":   func(m *Measured) { m.Forward.Queue, m.Forward.Marked, m.Forward.filled = 0, 0, false },
		"bursts of a few losses": func(m *Measured) { m.Forward.Loss, m.Forward.Asked.inflation = 0.03, 20 },
		"loss after the limit":   func(m *Measured) { m.Forward.Rate = 19.2e6 },
		"sending at a low rate":  func(m *Measured) { m.Forward.Asked.perByte, m.Forward.Delay.Median = 80*time.Microsecond, 17*ms },
		"a slow processor":       func(m *Measured) { m.Floor, m.RTT.Median = 2*ms, 17*ms },
		"a sane path, a bad host": func(m *Measured) {
			m.Host.Steal = 1 // a busy host does not change the verdict on the link
		},
	} {
		m := good()
		change(&m)
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// How far a measured jitter is off by chance depends on the number of probes and on the
// number of links that they cross.
func TestJitterByNumberOfProbes(t *testing.T) {
	one := []link.Spec{{Delay: 40 * ms, Jitter: 10 * ms}}
	for _, tc := range []struct {
		probes int
		links  []link.Spec
		least  time.Duration // that is still good, of 10 ms
	}{
		// By the order statistics of a uniform distribution, with 99.9 %, plus a tenth.
		{25, one, 5700 * time.Microsecond},
		{100, one, 7400 * time.Microsecond},
		{400, one, 8200 * time.Microsecond},
		{400, []link.Spec{{Delay: 20 * ms, Jitter: 6 * ms}, {Delay: 20 * ms, Jitter: 8 * ms}}, 7650 * time.Microsecond},
	} {
		a := ask(tc.links)
		for off, right := range map[time.Duration]bool{-300 * time.Microsecond: false, 300 * time.Microsecond: true} {
			half := (tc.least + off) * 8 / 10
			s := Spread{Probes: tc.probes, Median: 40 * ms, P10: 40*ms - half, P90: 40*ms + half}
			if v := a.jitterVerdict(s, 0); (v.Wrong == "") != right || v.Undecided != "" {
				t.Errorf("%d probes through %d links find ± %s of %s: %+v", tc.probes, len(tc.links), s.jitter(), a.Jitter, v)
			}
		}
	}
}

// Simulated links that do what was asked: with any number of probes, and with reordering,
// they are found wrong no more often than by chance.
func TestChanceIsAllowedFor(t *testing.T) {
	const runs = 2000
	r := rand.New(rand.NewPCG(3, 4))
	for _, s := range []link.Spec{
		{Delay: 40 * ms, Jitter: 30 * ms},
		{Delay: 40 * ms, Jitter: 30 * ms, Reorder: 0.001},
		{Delay: 40 * ms, Jitter: 30 * ms, Reorder: 0.05},
		{Delay: 40 * ms, Jitter: 40 * ms, Reorder: 0.2},
		{Delay: 40 * ms, Reorder: 0.45},
		{Delay: 40 * ms, Jitter: 10 * ms, Reorder: 0.7},
	} {
		a := ask([]link.Spec{s})
		for _, n := range []int{jitterProbes, 125} {
			delays, jitters := 0, 0
			for range runs {
				times := make([]time.Duration, n)
				for i := range times {
					if r.Float64() >= s.Reorder {
						times[i] = s.Delay + time.Duration((2*r.Float64()-1)*float64(s.Jitter))
					}
				}
				found := spread(times)
				if a.delayVerdict(found, 0).Wrong != "" {
					delays++
				}
				if s.Jitter > 0 && a.jitterVerdict(found, 0).Wrong != "" {
					jitters++
				}
			}
			if most := runs / 200; delays > most || jitters > most {
				t.Errorf("%s, %d probes: of %d times the delay is wrong %d and the jitter %d times", s, n, runs, delays, jitters)
			}
		}
	}
}

func TestCheckReportsUndecidedProperties(t *testing.T) {
	m := good()
	m.Forward.Asked.Reorder = 0.4
	m.Forward.Delay, m.Forward.Reorder = Spread{Probes: 50, Median: 3 * ms, P90: 12 * ms}, 0.6
	if err := m.Check(); err != nil {
		t.Errorf("Check() = %v", err)
	}
	undecided := map[string]bool{}
	for _, r := range m.Rows() {
		if undecided[r.Name] = r.Undecided != ""; r.Undecided != "" && !strings.Contains(m.String(), r.Undecided) {
			t.Errorf("%s is not judged, and the table does not say so:\n%s", r.Name, m)
		}
	}
	for name, want := range map[string]bool{"delay forward": true, "jitter forward": true, "reordering forward": true,
		"full queue forward": true, "loss forward": false, "rate forward": false, "delay backward": false} {
		if undecided[name] != want {
			t.Errorf("%s is not judged: %t, want %t", name, undecided[name], want)
		}
	}
}

func TestNothingCameBack(t *testing.T) {
	m := good()
	m.Probes, m.RTT = 125, Spread{}
	m.Forward.Offered, m.Forward.Rate = 0, 0 // no flood then
	m.Backward.Delay, m.Backward.Lost, m.Backward.Loss = Spread{}, 10_000, 1
	err := m.Check()
	for _, want := range []string{"none of 125 probes came back", "loss backward: 100 %"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check() = %v, want %q in it", err, want)
		}
	}
	if err != nil && strings.Count(err.Error(), "\n") > 1 {
		t.Errorf("Check() says more than that:\n%v", err)
	}
}

func TestTable(t *testing.T) {
	text := good().String()
	for _, want := range []string{"a to b", "round trip", "loss forward", "2.1 % of 10000", "20 Mbit/s", "full queue forward", "delay backward"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999: "999ns", 43_912: "43.9µs", 100_000: "100µs", 20_213_400: "20.2ms", 1_004_000_000: "1s", 61_234_000_000: "1m1.2s",
	} {
		if got := short(d); got != want {
			t.Errorf("short(%d) = %s, want %s", d, got, want)
		}
	}
}
