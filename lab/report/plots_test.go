package report

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/measure"
)

func TestNum(t *testing.T) {
	have, err := json.Marshal([]num{0, 1, 0.12345678, 12.345678, 123456789, 1e-9, -2.5, num(math.NaN()), num(math.Inf(1))})
	must(t, err)
	if want := `[0,1,0.1235,12.35,123500000,1e-09,-2.5,null,null]`; string(have) != want {
		t.Errorf("%s, want %s", have, want)
	}
}

// points makes n points of a connection, 100 ms apart, from a given time on.
func points(conn, n int, from time.Duration, cc string) []measure.Point {
	all := make([]measure.Point, n)
	for i := range all {
		all[i] = measure.Point{
			Conn: conn, At: from + time.Duration(i)*100*time.Millisecond, Goodput: float64(i) * 1e6, SRTT: 20_000, Cwnd: 10, CC: cc,
		}
	}
	return all
}

func TestRoundPlot(t *testing.T) {
	r := &RoundData{Connections: []measure.Connection{{ID: 0, Group: "bulk"}, {ID: 1, Group: "late", CC: "reno"}}}
	r.Points = append(points(0, 5, 0, "cubic"), points(0, 5, 500*time.Millisecond, "bbr")...)
	r.Points = append(r.Points, points(1, 3, time.Second, "")...)
	ccs := make(map[string]int)
	p := newRoundPlot(2, r, 1000, ccs)
	if p.Subject != 2 || p.Shown != 2 || p.Of != 2 || len(p.Lines) != 3 || math.Abs(float64(p.Step)-0.1) > 1e-9 {
		t.Fatalf("%+v", p)
	}
	cubic, bbr, reno := p.Lines[0], p.Lines[1], p.Lines[2]
	if cubic.CC != "cubic" || bbr.CC != "bbr" || reno.CC != "reno" || cubic.Group != "bulk" || reno.Group != "late" {
		t.Errorf("%+v", p.Lines)
	}
	if last := cubic.From + len(cubic.Goodput) - 1; last != bbr.From {
		t.Errorf("the first line ends at step %d, the second begins at %d: they do not meet", last, bbr.From)
	}
	if !slices.Equal(cubic.Goodput[:5], []num{0, 1, 2, 3, 4}) || cubic.RTT[0] != 20 || cubic.Cwnd[0] != 10 {
		t.Errorf("%+v", cubic)
	}
	if len(ccs) != 3 || ccs["reno"] != 3 {
		t.Errorf("colours %v", ccs)
	}
}

// If there are too many points, the time steps become longer first, and then the shortest
// connections are left out. Means stay correct.
func TestRoundPlotWithinBudget(t *testing.T) {
	r := &RoundData{}
	for conn := range 20 {
		r.Points = append(r.Points, points(conn, 1000-conn, 0, "cubic")...)
	}
	for budget, shown := range map[int]int{100_000: 20, 20 * 320: 20, 20 * 100: 20, 5 * 41: 5, 1: 1} {
		p := newRoundPlot(0, r, budget, make(map[string]int))
		size := 0
		for _, l := range p.Lines {
			size += len(l.Goodput)
		}
		if p.Shown != shown || size > budget && p.Shown > 1 || p.Columns > maxColumns+1 || p.Of != 20 {
			t.Errorf("budget %d: %d points, %d of %d connections, %d steps", budget, size, p.Shown, p.Of, p.Columns)
		}
		if p.Lines[0].ID != 0 {
			t.Errorf("budget %d: the longest is left out", budget)
		}
		if mean := p.Lines[0].Goodput[0]; mean <= 0 || float64(mean) > 1.05*float64(p.Step)*10/2 {
			t.Errorf("budget %d: the first step of %v s has a mean of %v", budget, p.Step, mean)
		}
	}
}

// Reports that no run writes must not cause a panic.
func TestRoundPlotOfInvalidReports(t *testing.T) {
	for name, all := range map[string][]measure.Point{
		"negative": {{At: -1}, {At: math.MinInt64}}, "huge": {{At: math.MaxInt64}, {At: 0}, {At: -5}}, "at once": {{At: 0}, {At: 0}, {At: 0}},
	} {
		p := newRoundPlot(0, &RoundData{Points: all}, 100, make(map[string]int))
		if name == "negative" {
			if p != nil {
				t.Errorf("%s: %+v", name, p)
			}
			continue
		}
		for _, l := range p.Lines {
			if len(l.Goodput) > maxColumns+1 {
				t.Errorf("%s: %d steps", name, len(l.Goodput))
			}
		}
	}
}

func TestCDF(t *testing.T) {
	c := caseOf("fct_mean", "cubic", three, map[string][]float64{"cubic": {1}, "bbr": {1}, "tcpilot": {1}})
	for i := range 100 {
		c.Rounds[0].Requests = append(c.Rounds[0].Requests, measure.Request{Group: "a", Elapsed: time.Duration(i+1) * 10 * time.Millisecond})
		c.Rounds[1].Requests = append(c.Rounds[1].Requests, measure.Request{Group: "a", Elapsed: 100 * time.Millisecond})
	}
	c.Rounds[1].Requests = append(c.Rounds[1].Requests, measure.Request{Group: "a"}) // took no time: not a request
	c.Rounds[2].Requests = []measure.Request{{Group: "b", Elapsed: time.Second}}
	s := c.summarise()
	plots := newCDFs(c, &s)
	if len(plots) != 2 || plots[0].Group != "a" || len(plots[0].Curves) != 2 || plots[1].Curves[0].Subject != 2 {
		t.Fatalf("%+v", plots)
	}
	cubic, bbr := plots[0].Curves[0], plots[0].Curves[1]
	if cubic.N != 100 || bbr.N != 100 || cubic.Share[cdfSteps] != 1 || bbr.Share[cdfSteps] != 1 || bbr.Share[0] != 0 || cubic.Share[0] != 0.01 {
		t.Errorf("ends: %v %v %v", cubic.N, cubic.Share, bbr.Share)
	}
	for i, x := range plots[0].Times {
		want := math.Floor(float64(x)*100+1e-6) / 100
		if math.Abs(float64(cubic.Share[i])-want) > 0.011 {
			t.Errorf("%v s: %v, want %v", x, cubic.Share[i], want)
		}
		if (bbr.Share[i] == 1) != (x >= 0.1-1e-9) {
			t.Errorf("%v s: %v of bbr", x, bbr.Share[i])
		}
	}
}

func TestChoices(t *testing.T) {
	c := caseOf("goodput", "cubic", three, nil)
	chose := func(repeat, n int, cc string) {
		r := bulk("tcpilot", repeat, make([]float64, n)...)
		for i := range r.Connections {
			r.Connections[i].CC = cc
		}
		c.Rounds = append(c.Rounds, r)
	}
	chose(0, 100, "cubic")
	chose(1, 200, "bbr")
	chose(2, 50, "bbr")
	chose(0, 25, "bbr")
	chose(0, 25, "bbr")
	chose(3, 1000, "reno")
	c.Rounds[len(c.Rounds)-1].Refused = "stalled"
	for _, r := range c.Rounds {
		r.Connections = append(r.Connections, measure.Connection{Group: "theirs", CC: "cubic"})
	}
	s := c.summarise()
	plots := newChoicePlots(c, &s, make(map[string]int))
	if len(plots) != 1 {
		t.Fatalf("%+v", plots)
	}
	p := plots[0]
	if p.Connections != 400 || !slices.Equal(p.Warmup, [][2]int{{0, 100}, {350, 400}}) ||
		!slices.Equal(p.Rounds, []int{100, 300, 350, 375}) || p.Rows[0].CC != "bbr" || p.Rows[0].Count != 300 {
		t.Errorf("%+v", p)
	}
	for i := range choiceBins {
		want := num(0)
		if i >= choiceBins/4 {
			want = 1
		}
		if p.Rows[0].Share[i] != want || p.Rows[1].Share[i] != 1-want {
			t.Errorf("bin %d: %v and %v", i, p.Rows[0].Share[i], p.Rows[1].Share[i])
		}
	}
}

func TestColours(t *testing.T) {
	ccs := make(map[string]int)
	have := subjectColours([]SubjectSummary{
		{Name: "iw10", Fixed: "cubic"}, {Name: "iw40", Fixed: "cubic"}, {Name: "tcpilot", Learns: true}, {Name: "tcpilot-2", Learns: true},
		{Name: "x", Fixed: "illinois"}, {Name: "y", Fixed: "westwood"}, {Name: "default"},
	}, ccs)
	if have[0] != familiar["cubic"] || have[2] != 0 || have[4] != 6 || have[5] != 7 {
		t.Errorf("%v", have)
	}
	seen := make(map[int]bool)
	for i, n := range have {
		if seen[n] || n < 0 || n >= colourCount {
			t.Errorf("subject %d has colour %d: %v", i, n, have)
		}
		seen[n] = true
	}
	many := subjectColours(make([]SubjectSummary, 30), ccs)
	if slices.Max(many) >= colourCount {
		t.Errorf("%v", many)
	}
}

// All marks of a subject's rounds are within its strip.
func TestStrips(t *testing.T) {
	c := caseOf("goodput", "cubic", three, map[string][]float64{"cubic": {10, 12, 11, 11, 11}, "bbr": {95, 100, 90, 95, 96}, "tcpilot": {1, 1, 1, 1, 1}})
	s := c.summarise()
	a := newAxis(c, &s, "goodput")
	if a.Ends() != [2]string{"0.00", "100.00"} && a.Ends() != [2]string{"0", "100"} || !a.HasReference() || a.Only() != "" {
		t.Errorf("axis %v, %q", a.Ends(), a.Only())
	}
	for i := range s.Subjects {
		p := a.strip(c, &s.Subjects[i], "goodput")
		if len(p.Dots) != 5 || p.Bar <= 0 || p.Low+p.Bar > stripWidth || p.Low < 0 || p.Median < p.Low || p.Median > p.Low+p.Bar+0.1 {
			t.Errorf("%+v", p)
		}
	}
	same := caseOf("retrans", "cubic", three, map[string][]float64{"cubic": {0}, "bbr": {0}})
	s = same.summarise()
	a = newAxis(same, &s, "retrans")
	if a.X(0) != stripWidth/2 || a.Only() != "0" || a.Ends() != [2]string{} {
		t.Errorf("one value: %v %q %v", a.X(0), a.Only(), a.Ends())
	}
	if p, ok := newPanel(same, &s, "rtt", make([]int, 3)); ok {
		t.Errorf("a panel without values: %+v", p)
	}
	if n := len([]rune(shorten("a-very-long-name-of-a-subject"))); n != maxLabel {
		t.Errorf("shortened to %d", n)
	}
}
