package report

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// caseOf makes a case from the primary metric's values of each subject, one for each
// repeat from 1 on.
func caseOf(primary, baseline string, subjects []Subject, values map[string][]float64) *CaseRounds {
	c := &CaseRounds{Case: Case{Scenario: "test", Primary: primary, Metrics: []string{primary}, Baseline: baseline, Subjects: subjects}}
	order := 0
	for _, s := range subjects {
		for i, v := range values[s.Name] {
			c.Rounds = append(c.Rounds, &RoundData{Round: Round{
				Scenario: "test", Subject: s.Name, Repeat: i + 1, Order: order, Metrics: map[string]float64{primary: v},
			}})
			order++
		}
	}
	return c
}

var three = []Subject{{Name: "cubic", Fixed: "cubic"}, {Name: "bbr", Fixed: "bbr"}, {Name: "tcpilot", Learns: true}}

func TestSummary(t *testing.T) {
	c := caseOf("goodput", "cubic", three, map[string][]float64{
		"cubic": {10, 20, 5, 10, 10}, "bbr": {20, 40, 10, 20, 20}, "tcpilot": {19, 39, 9, 19, 19},
	})
	s := c.summarise()
	if s.Oracle != "bbr" {
		t.Errorf("oracle is %q", s.Oracle)
	}
	v := s.Subject("tcpilot").Metrics["goodput"]
	if v.N != 5 || v.Median != 19 || v.Q1 != 19 || v.Q3 != 19 || *v.CI != (measure.Interval{Low: 9, High: 39, Level: 0.9375}) || v.Best {
		t.Errorf("tcpilot: %+v", v)
	}
	if r := v.Baseline; r == nil || r.Ratio != 1.9 || !r.Distinct() {
		t.Errorf("to the baseline %+v, want 1.9 in spite of the spread", r)
	}
	if r := v.Oracle; r == nil || r.Ratio != 0.95 || !r.Distinct() {
		t.Errorf("to the oracle %+v", r)
	}
	if !s.Subject("bbr").Metrics["goodput"].Best || s.Subject("cubic").Metrics["goodput"].Best {
		t.Error("bbr is not the best")
	}
	if s.Subject("none") != nil {
		t.Error("Subject returned one that does not exist")
	}
}

// If less is better, the oracle and the best are those with the least. A subject that
// learns is never the oracle.
func TestSummaryOfTimes(t *testing.T) {
	c := caseOf("web/fct_p99", "cubic", three, nil)
	for i, v := range []float64{0.3, 0.5, 0.2} {
		c.Rounds = append(c.Rounds, &RoundData{Round: Round{
			Subject: three[i].Name, Repeat: 1, Groups: map[string]map[string]float64{"web": {"fct_p99": v}},
		}})
	}
	s := c.summarise()
	if s.Oracle != "cubic" || !s.Subject("tcpilot").Metrics["web/fct_p99"].Best {
		t.Errorf("oracle %q, %+v", s.Oracle, s.Subjects)
	}
	if v := s.Subject("bbr").Metrics["web/fct_p99"]; v.CI != nil || v.Baseline.CI != nil || v.Baseline.N != 1 {
		t.Errorf("one round has an interval: %+v", v)
	}
}

func TestRefusedRoundsAreExcluded(t *testing.T) {
	c := caseOf("goodput", "cubic", three, map[string][]float64{"cubic": {10, 10, 10}, "tcpilot": {20, 20, 1000, 20}})
	c.Rounds[5].Refused = "the host stalled" // 1000
	c.Rounds[5].Errors, c.Rounds[4].Errors, c.Rounds[4].FirstError = 7, 2, "refused"
	c.Rounds = append(c.Rounds, &RoundData{Round: Round{Subject: "tcpilot", Repeat: 0, Metrics: map[string]float64{"goodput": 1}}})
	s := c.summarise()
	pilot := s.Subject("tcpilot")
	if pilot.Rounds != 3 || pilot.Refused != 1 || pilot.RefusedWhy != "the host stalled" || pilot.Warmup != 1 || pilot.Errors != 2 || pilot.FirstError != "refused" {
		t.Errorf("%+v", pilot)
	}
	if v := pilot.Metrics["goodput"]; v.N != 3 || v.Median != 20 || v.Baseline.N != 2 {
		t.Errorf("%+v, %+v: the third and fourth repeat have no pair", v, v.Baseline)
	}
	if _, ok := s.Subject("bbr").Metrics["goodput"]; ok || s.Oracle != "" {
		t.Errorf("bbr has no round; the oracle is %q", s.Oracle)
	}
	c.Case.Subjects = slices.Clone(c.Case.Subjects)
	c.Case.Subjects[1].Skipped = "this kernel has none"
	if s := c.summarise(); s.Oracle != "cubic" {
		t.Errorf("bbr cannot run; the oracle is %q", s.Oracle)
	}
	if v := s.Subject("cubic").Metrics["goodput"]; v.Best || v.Baseline.Ratio != 1 {
		t.Errorf("cubic: %+v", v)
	}
}

func TestNoBestAmongEquals(t *testing.T) {
	c := caseOf("retrans", "cubic", three, map[string][]float64{"cubic": {0}, "bbr": {0}, "tcpilot": {0}})
	for _, s := range c.summarise().Subjects {
		if v := s.Metrics["retrans"]; v.Best || v.Baseline != nil {
			t.Errorf("%s: %+v", s.Name, v)
		}
	}
}

// bulk is a round of connections with these goodputs, in Mbit/s.
func bulk(subject string, repeat int, goodputs ...float64) *RoundData {
	r := &RoundData{Round: Round{Subject: subject, Repeat: repeat, Metrics: map[string]float64{"goodput": goodputs[0]}}}
	for i, g := range goodputs {
		// By start time the connections are 0, 1, ...; in the file in reverse order.
		id := len(goodputs) - 1 - i
		r.Connections = append([]measure.Connection{{
			Group: "bulk", ID: id, Start: time.Duration(i) * time.Second, Elapsed: time.Second, Bytes: uint64(g * 1e6 / 8), CC: "cubic",
		}}, r.Connections...)
	}
	return r
}

func TestRegretOfConnections(t *testing.T) {
	c := caseOf("goodput", "cubic", three, nil)
	c.Rounds = []*RoundData{
		bulk("tcpilot", 0, 10, 20, 80), bulk("cubic", 1, 10, 10, 10), bulk("bbr", 1, 90, 110), bulk("tcpilot", 1, 100, 100, 110),
		bulk("tcpilot", 2, 0, 0, 0),
	}
	c.Rounds[4].Refused = "stalled"
	s := c.summarise()
	r := s.Subject("tcpilot").Regret
	if r == nil || r.Connections != 6 || math.Abs(r.Total-1.8) > 1e-9 || math.Abs(r.LastHalf+0.1) > 1e-9 {
		t.Fatalf("regret %+v, want 1.8 of 6, -0.1 in the second half", r)
	}
	for i, want := range []float64{0.9, 1.7, 1.9, 1.9, 1.9, 1.8} {
		if math.Abs(r.sums[i]-want) > 1e-9 {
			t.Errorf("regret %v, want %v after %d", r.sums[i], want, i+1)
		}
	}
	if s.Subject("cubic").Regret != nil {
		t.Error("cubic does not learn")
	}
}

// Small flows never reach the rate of large ones, so each is compared with the oracle's
// flows of about its size. A primary metric of one group excludes other groups.
func TestRegretOfFlows(t *testing.T) {
	c := caseOf("flows/fct_mean", "cubic", three, nil)
	flow := func(subject string, repeat int, seconds ...float64) {
		r := &RoundData{Round: Round{Subject: subject, Repeat: repeat, Groups: map[string]map[string]float64{"flows": {"fct_mean": seconds[0]}}}}
		for i, bytes := range []uint64{1000, 1e6} {
			d := time.Duration(seconds[i] * 1e9)
			r.Connections = append(r.Connections, measure.Connection{Group: "flows", ID: i, Start: time.Duration(i), Elapsed: d, Bytes: bytes})
			r.Requests = append(r.Requests, measure.Request{Group: "flows", Conn: i, Elapsed: d, Bytes: bytes})
		}
		r.Connections = append(r.Connections, measure.Connection{Group: "other", ID: 2, Elapsed: time.Second, Bytes: 1})
		c.Rounds = append(c.Rounds, r)
	}
	flow("cubic", 1, 0.1, 0.2)
	flow("bbr", 1, 0.05, 0.1)
	flow("tcpilot", 1, 0.1, 0.1)
	if r := c.summarise().Subjects[2].Regret; r == nil || r.Connections != 2 || math.Abs(r.Total-0.5) > 1e-9 {
		t.Errorf("regret %+v, want half a connection of 2", r)
	}
}

// There is no regret if the oracle is the best in something other than goodput, or if no
// subject tunes the connections of the primary metric. Other connections that no subject
// tunes are excluded.
func TestRegretOnlyOfTunedGoodput(t *testing.T) {
	for primary, want := range map[string]int{
		"goodput": 1, "ours/goodput": 1, "ours/fct_p99": 1,
		"theirs/goodput": 0, "rtt": 0, "ours/rtt": 0, "retrans": 0, "jain": 0, "connections_per_second": 0,
	} {
		c := caseOf(primary, "cubic", three, nil)
		group, metric := measure.Split(primary)
		for i, cc := range []string{"cubic", "bbr", "bbr"} {
			r := &RoundData{Round: Round{Subject: three[i].Name, Repeat: 1}, Connections: []measure.Connection{
				{Group: "ours", ID: 0, CC: cc, Elapsed: time.Second, Bytes: 1000},
				{Group: "theirs", ID: 1, CC: "cubic", Elapsed: time.Second, Bytes: 10},
				{Group: "theirs", ID: 2, Elapsed: time.Second, Bytes: 10},
			}}
			if values := map[string]float64{metric: 1}; group == "" {
				r.Metrics = values
			} else {
				r.Groups = map[string]map[string]float64{group: values}
			}
			c.Rounds = append(c.Rounds, r)
		}
		s := c.summarise()
		if s.Oracle == "" {
			t.Fatalf("%s has no oracle", primary)
		}
		connections := 0
		if r := s.Subject("tcpilot").Regret; r != nil {
			connections = r.Connections
		}
		if connections != want {
			t.Errorf("%s: regret of %d connections, want %d", primary, connections, want)
		}
	}
}

func TestCompared(t *testing.T) {
	a := &Report{Run: Run{Kernel: "6.18", CPUs: 2}, Cases: []*CaseRounds{caseOf("fct_mean", "cubic", three[:2], map[string][]float64{
		"cubic": {1, 1.1, 0.9, 1, 1}, "bbr": {2, 2.1, 1.9, 2, 2},
	})}}
	b := &Report{Run: Run{Kernel: "6.12", CPUs: 2}, Cases: []*CaseRounds{caseOf("fct_mean", "cubic", three, map[string][]float64{
		"cubic": {1.05, 1.15, 0.95, 1.05, 1.05}, "bbr": {1, 1.1, 0.9, 1, 1}, "tcpilot": {1, 1, 1, 1, 1},
	})}}
	for _, c := range []struct {
		a, b *Report
		want map[string]Verdict
	}{
		{a, b, map[string]Verdict{"cubic": Agree, "bbr": Better, "tcpilot": OnlyB}},
		{b, a, map[string]Verdict{"cubic": Agree, "bbr": Worse, "tcpilot": OnlyA}},
		{a, &Report{Run: a.Run}, map[string]Verdict{"cubic": OnlyA, "bbr": OnlyA}},
		{&Report{Run: b.Run}, b, map[string]Verdict{"cubic": OnlyB, "bbr": OnlyB, "tcpilot": OnlyB}},
	} {
		got := Compared(c.a, c.b)
		if len(got.Figures) != len(c.want) {
			t.Errorf("%d figures, want %d", len(got.Figures), len(c.want))
		}
		for _, f := range got.Figures {
			if f.Verdict != c.want[f.Subject] || !f.Primary {
				t.Errorf("%s: %s, want %s", f.Subject, f.Verdict, c.want[f.Subject])
			}
			if f.Subject == "bbr" && f.Verdict == Better && math.Abs(f.Ratio.Ratio-0.5) > 1e-9 {
				t.Errorf("bbr: ratio %+v", f.Ratio)
			}
		}
		if differ := c.a.Run.Kernel != c.b.Run.Kernel; differ != (len(got.Differences) == 1) {
			t.Errorf("differences %q", got.Differences)
		}
	}
}

// Cases of the same name may differ in what they measure.
func TestComparedCasesThatDiffer(t *testing.T) {
	report := func() *Report {
		return &Report{Cases: []*CaseRounds{caseOf("goodput", "cubic", three[:1], map[string][]float64{"cubic": {1}})}}
	}
	a, b := report(), report()
	if c := Compared(a, b); len(c.Cases) != 0 {
		t.Errorf("the same: %+v", c.Cases)
	}
	a.Cases[0].Link, b.Cases[0].Link = "10 Mbit/s", "20 Mbit/s"
	a.Cases[0].Backend, b.Cases[0].Backend = "emulator", "netem"
	b.Cases[0].Primary, b.Cases[0].Baseline = "rtt", ""
	want := []CaseDifferences{{"test", "", []string{
		"link: 10 Mbit/s in A, 20 Mbit/s in B", "backend: emulator in A, netem in B",
		"first metric: goodput in A, rtt in B", "baseline: cubic in A, none in B",
	}}}
	if c := Compared(a, b); !reflect.DeepEqual(c.Cases, want) {
		t.Errorf("%+v, want %+v", c.Cases, want)
	}
}

// Too few rounds give no verdict. Medians that are known exactly but hardly differ agree.
func TestComparedWithFewRoundsOrSmallDifferences(t *testing.T) {
	always := func(v float64) []float64 { return slices.Repeat([]float64{v}, measure.MinSample) }
	for i, c := range []struct {
		a, b []float64
		want Verdict
	}{
		{[]float64{1, 2}, []float64{1, 2, 3}, Unknown},
		{always(1), always(1.005), Agree},
		{always(1), always(1.02), Better},
		{always(0), always(0), Agree},
		{always(0), always(1), Better},
	} {
		var f Figure
		f.Metric = "goodput"
		if !f.fill(c.a, c.b) || f.Verdict != c.want {
			t.Errorf("%d: %s, want %s", i, f.Verdict, c.want)
		}
	}
}

func TestScales(t *testing.T) {
	for _, c := range []struct {
		metric string
		values []float64
		want   string // of the first
	}{
		{"goodput", []float64{184.8e6, 4.4e6}, "184.8 Mbit/s"},
		{"goodput", []float64{184.8e6}, "185 Mbit/s"},
		{"goodput", []float64{9.41e9}, "9.41 Gbit/s"},
		{"goodput", []float64{0}, "0 bit/s"},
		{"fct_mean", []float64{0.0234}, "23.4 ms"},
		{"fct_mean", []float64{0.000012, 1.5}, "0.000 s"},
		{"rtt", []float64{12e-6}, "12.0 us"},
		{"cpu_per_byte", []float64{1.23e-9}, "1.23 ns/B"},
		{"retrans", []float64{0.0512}, "5.12 %"},
		{"connections_per_second", []float64{18000}, "18000 1/s"},
		{"jain", []float64{0.987}, "0.987"},
		{"ours/goodput", []float64{1e6}, "1.00 Mbit/s"},
		{"unheard-of", []float64{1.5}, "1.50"},
	} {
		s := scaleOf(c.metric, c.values)
		have := s.write(c.values[0])
		if s.unit != "" {
			have += " " + s.unit
		}
		if have != c.want {
			t.Errorf("%s %v: %q, want %q", c.metric, c.values, have, c.want)
		}
	}
	for v, want := range map[float64]string{26.04: "26.0", 1: "1.00", 0.5: "0.50", 0.0381: "0.038", 123.4: "123", 0: "0.00"} {
		if have := factor(v); have != want {
			t.Errorf("factor %v: %q, want %q", v, have, want)
		}
	}
}
