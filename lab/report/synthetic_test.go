package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// synthetic makes a report like that of a run. Its figures are invented, with the shape of
// real ones, and the same every time.
type synthetic struct {
	*Writer
	random *rand.Rand
	began  time.Time
	size   int // connections, flows and points of a round are about this many times 10
}

func writeSynthetic(t testing.TB, w io.Writer, size int) {
	t.Helper()
	s := &synthetic{NewWriter(w), rand.New(rand.NewPCG(1, 2)), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), size}
	must(t, s.Run(Run{
		Tcpilot: "0.2.0", Began: s.began, Command: "tcpilot lab run loss shift fct-pareto coexist datacentre -o out.jsonl",
		Kernel: "6.18.5", CPUs: 2, CPU: "AMD EPYC 9R14", Repeat: 5,
	}))
	s.loss(t)
	s.shift(t)
	s.flows(t)
	s.coexist(t)
	must(t, s.Case(Case{
		Scenario: "datacentre", Title: "Incast with ECN in a rack", Primary: "fct_p99", Metrics: []string{"fct_p99", "retrans"},
		Baseline: "cubic", Link: "10 Gbit/s, 100 us, marks from 65 packets on", Backend: "emulator",
		Source: "incast", Expect: "dctcp keeps the queue short", Refused: "this kernel has no dctcp: run it with --kernel 6.12",
	}))
	must(t, s.End(End{Elapsed: 7*time.Minute + 21*time.Second}))
	must(t, s.Close())
}

// syntheticReport is the synthetic report after reading.
func syntheticReport(t testing.TB) *Report {
	t.Helper()
	var b bytes.Buffer
	writeSynthetic(t, &b, 3)
	r, err := Read(&b)
	must(t, err)
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// noise is a factor around 1.
func (s *synthetic) noise(spread float64) float64 { return math.Exp(s.random.NormFloat64() * spread) }

// usual subjects: cubic is the baseline, one learns, one is skipped.
func usual() []Subject {
	return []Subject{
		{Name: "cubic", Fixed: "cubic"}, {Name: "bbr", Fixed: "bbr"}, {Name: "reno", Fixed: "reno"},
		{Name: "tcpilot", Learns: true, Warmup: 1}, {Name: "bpftune", Skipped: "bpftune is not installed"},
	}
}

// rounds runs the rounds of a case in turn.
func (s *synthetic) rounds(t testing.TB, c Case, repeat int, run func(subject Subject, nth int) *measure.Result) {
	t.Helper()
	must(t, s.Case(c))
	order, nth := 0, make(map[string]int)
	for rep := range repeat + 1 {
		for _, subject := range c.Subjects {
			if subject.Skipped != "" || rep == 0 && subject.Warmup == 0 {
				continue
			}
			result := run(subject, nth[subject.Name])
			nth[subject.Name]++
			round := Round{Scenario: c.Scenario, Case: c.Case, Subject: subject.Name, Repeat: rep, Order: order, Began: s.began}
			round.Measure(result)
			if c.Scenario == "shift" && subject.Name == "reno" && rep == 2 {
				round.Refused = "the host stalled for 212 ms"
			}
			if subject.Learns && rep == repeat {
				round.State = json.RawMessage(`{"path":"192.0.2.0/24","belief":{"bbr":5.2,"cubic":2.9}}`)
			}
			must(t, s.Round(round, result))
			order++
		}
	}
}

// chosen is the congestion control of a learner's n-th connection: it explores at
// first.
func (s *synthetic) chosen(subject Subject, n int, best string) string {
	if !subject.Learns {
		return subject.Fixed
	}
	if n > 12 && s.random.Float64() < 0.97 || s.random.Float64() < float64(n)/14 {
		return best
	}
	return []string{"cubic", "bbr", "reno"}[s.random.IntN(3)]
}

// connection makes a connection of length d, with points. goodput is in bit/s by time.
func (s *synthetic) connection(r *measure.Result, group string, cc string, start, d time.Duration, goodput func(time.Duration) float64, base time.Duration) {
	c := measure.Connection{
		Group: group, ID: len(r.Connections), From: "s1", To: "r1", Start: start, Elapsed: d, CC: cc,
		MinRTT: measure.RTTOf(base), Delivered: true,
	}
	every := max(100*time.Millisecond, d/time.Duration(8*s.size))
	var sum, rtts float64
	n := 0
	for at := every; at <= d; at += every {
		g := goodput(start+at) * s.noise(0.08)
		sum += g * every.Seconds() / 8
		srtt := time.Duration(float64(base) * (1.02 + 0.25*queue(cc, at))).Round(time.Microsecond)
		rtts += float64(srtt)
		n++
		r.Points = append(r.Points, measure.Point{
			Conn: c.ID, At: start + at, Goodput: math.Round(g), SRTT: measure.RTTOf(srtt), CC: cc,
			Cwnd: uint32(max(2, g*srtt.Seconds()/8/1448)),
		})
		c.SRTT = measure.RTTOf(srtt)
	}
	c.Bytes = uint64(sum)
	c.MeanRTT = measure.RTTOf(time.Duration(rtts / float64(max(1, n))).Round(time.Microsecond))
	c.Segments = uint32(sum/1448) + 1
	c.Retrans = uint32(float64(c.Segments) * 0.05 * s.noise(0.1))
	c.RTOs = c.Retrans / 400
	r.Connections = append(r.Connections, c)
}

// queue is how full a congestion control keeps the queue over time.
func queue(cc string, at time.Duration) float64 {
	if cc == "bbr" {
		return 0.1
	}
	return 0.5 + 0.5*math.Mod(at.Seconds()/1.7, 1)
}

func constant(g float64) func(time.Duration) float64 { return func(time.Duration) float64 { return g } }

func (s *synthetic) loss(t testing.TB) {
	goodput := map[string]float64{"cubic": 7.2e6, "bbr": 184e6, "reno": 7.9e6}
	c := Case{
		Scenario: "loss", Case: "5%", Title: "One bulk transfer after the other over a lossy link", Source: "loss 0, 5 and 10 %",
		Expect: "loss-based congestion controls collapse, bbr does not; a learner finds that out", Link: "200 Mbit/s, 2 x 5 ms, loss 5 %",
		Backend: "emulator", Primary: "goodput", Metrics: []string{"goodput", "retrans", "rtt", "rtt_inflation", "rtos"}, Baseline: "cubic",
		Subjects: usual(), Calibration: json.RawMessage(`{"rtt_ms":10.1,"loss":0.0499,"rate_mbit":199.8}`),
	}
	s.rounds(t, c, 5, func(subject Subject, nth int) *measure.Result {
		n := 3 * s.size
		r := &measure.Result{Elapsed: time.Duration(n) * time.Second, CPU: map[string]measure.CPU{"s1": {System: time.Second}}}
		for i := range n {
			cc := s.chosen(subject, nth*n+i, "bbr")
			s.connection(r, "bulk", cc, time.Duration(i)*time.Second, time.Second, constant(goodput[cc]*s.noise(0.06)), 10*time.Millisecond)
		}
		return r
	})
}

func (s *synthetic) shift(t testing.TB) {
	c := Case{
		Scenario: "shift", Title: "The link changes under a long connection: clean, 5 % of loss for 10 s, clean",
		Link: "100 Mbit/s, 2 x 10 ms; at 10 s loss 5 %; at 20 s none", Backend: "emulator", Primary: "connection_goodput",
		Metrics: []string{"connection_goodput", "retrans", "rtt", "jain"}, Baseline: "cubic", Subjects: usual(),
		Source: "tcpilot", Expect: "what learned on the clean link is wrong on the lossy one",
	}
	s.rounds(t, c, 5, func(subject Subject, nth int) *measure.Result {
		r := &measure.Result{Elapsed: 30 * time.Second}
		for range 2 {
			cc := s.chosen(subject, 20, "bbr")
			s.connection(r, "bulk", cc, 0, 30*time.Second, func(at time.Duration) float64 {
				if cc != "bbr" && at > 10*time.Second && at < 20*time.Second {
					return 5e6
				}
				return 46e6
			}, 20*time.Millisecond)
		}
		if subject.Learns { // a live connection is switched
			c := &r.Connections[0]
			c.CC, c.CCEnd = "cubic", "bbr"
			for i := range r.Points {
				if p := &r.Points[i]; p.Conn == c.ID && p.At < 12*time.Second {
					p.CC = "cubic"
				}
			}
		}
		return r
	})
}

func (s *synthetic) flows(t testing.TB) {
	for _, average := range []float64{10e3, 1e6} {
		c := Case{
			Scenario: "fct-pareto", Case: fmt.Sprintf("%.0fKB", average/1e3), Title: "Flows of Pareto sizes, 5 to 80 at a time", Source: "flow sizes",
			Expect: "a larger initial window helps the small ones", Link: "100 Mbit/s, 2 x 10 ms", Backend: "emulator",
			Primary: "fct_mean", Metrics: []string{"fct_mean", "fct_p50", "fct_p99", "retrans", "requests_per_second"}, Baseline: "iw10",
			Subjects: []Subject{{Name: "iw10", Fixed: "cubic"}, {Name: "iw40", Fixed: "cubic"}, {Name: "tcpilot", Learns: true, Warmup: 1}},
		}
		s.rounds(t, c, 5, func(subject Subject, nth int) *measure.Result {
			r := &measure.Result{}
			at := time.Duration(0)
			for i := range 100 * s.size {
				at += 5 * time.Millisecond
				size := min(average*100, average/8*math.Pow(s.random.Float64(), -1/1.2))
				trips := math.Ceil(math.Log2(size/14600 + 1))
				if subject.Name != "iw10" {
					trips = max(1, trips-1.5)
				}
				d := time.Duration((0.022*(1+trips) + size*8/40e6) * s.noise(0.2) * 1e9)
				r.Connections = append(r.Connections, measure.Connection{
					Group: "flows", ID: i, From: "s1", To: "r1", Start: at, Elapsed: d, Bytes: uint64(size), CC: "cubic",
					Segments: uint32(size/1448) + 1, MinRTT: 20_000, MeanRTT: 24_000, Delivered: true,
				})
				r.Requests = append(r.Requests, measure.Request{Group: "flows", Conn: i, Start: at, Elapsed: d, Bytes: uint64(size)})
				r.Elapsed = max(r.Elapsed, at+d)
			}
			return r
		})
	}
}

func (s *synthetic) coexist(t testing.TB) {
	c := Case{
		Scenario: "coexist", Case: "2 beside 2", Title: "What our choice costs two Cubic flows on the same link", Source: "tcpilot",
		Expect: "bbr takes more than its share of a shallow queue", Link: "100 Mbit/s, 2 x 10 ms, 0.5 BDP", Backend: "netem",
		Primary: "ours/goodput", Metrics: []string{"ours/goodput", "theirs/goodput", "jain", "rtt_inflation", "errors"}, Baseline: "cubic", Subjects: usual(),
	}
	share := map[string]float64{"cubic": 0.5, "reno": 0.42, "bbr": 0.68}
	s.rounds(t, c, 5, func(subject Subject, nth int) *measure.Result {
		r := &measure.Result{Elapsed: 10 * time.Second}
		for range 2 {
			cc := s.chosen(subject, 30, "bbr")
			s.connection(r, "ours", cc, 0, 10*time.Second, constant(47e6*share[cc]*s.noise(0.1)), 20*time.Millisecond)
			s.connection(r, "theirs", "cubic", 0, 10*time.Second, constant(47e6*(1-share[cc])*s.noise(0.1)), 20*time.Millisecond)
		}
		if subject.Name == "reno" {
			r.Errors, r.FirstError = 1, "connect to 10.1.0.2: connection refused"
		}
		return r
	})
}
