package experiment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/measure"
	"github.com/tcpilot/tcpilot/lab/report"
	"github.com/tcpilot/tcpilot/lab/scenario"
)

func TestMain(m *testing.M) {
	load.RunIfAgent()
	testenv.Main(m)
}

// run runs a scenario on a host that may be busy, and reads what it wrote.
func run(t *testing.T, ctx context.Context, text string) (*report.Report, error) {
	t.Helper()
	return runWith(t, ctx, text, Options{anyHost: true})
}

func runWith(t *testing.T, ctx context.Context, text string, o Options) (*report.Report, error) {
	t.Helper()
	var b bytes.Buffer
	out := report.NewWriter(&b)
	o.Scenarios, o.Backend, o.Binary, o.Out, o.Quick = []*scenario.Scenario{read(t, text)}, link.Auto, os.Args[0], out, true
	err := Run(ctx, o, Machine())
	if cerr := out.Close(); cerr != nil {
		t.Fatal(cerr)
	}
	r, rerr := report.Read(&b)
	if rerr != nil {
		t.Fatal(errors.Join(err, rerr))
	}
	return r, err
}

// Subjects take turns, and one that is not there is skipped, not the rest.
func TestRootTurns(t *testing.T) {
	testenv.Root(t)
	r, err := run(t, t.Context(), strings.Replace(two, "[cubic, reno]", "[cubic, reno, {name: none, cc: nosuch}]", 1))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cases) != 2 || r.End == nil {
		t.Fatalf("%d cases, end %+v", len(r.Cases), r.End)
	}
	for _, c := range r.Cases {
		if c.Case.Refused != "" {
			t.Errorf("case %s is refused: %s", c.Case.Case, c.Case.Refused)
			continue
		}
		if s := c.Case.Subjects; len(s) != 3 || s[0].Skipped != "" || s[2].Skipped == "" {
			t.Errorf("subjects of %s: %+v", c.Case.Case, s)
		}
		var order []string
		for _, round := range c.Rounds {
			order = append(order, fmt.Sprint(round.Round.Subject, round.Round.Repeat))
			if strings.Contains(round.Round.Refused, "aggregates") {
				t.Errorf("round %d: offloads are off: %s", round.Round.Order, round.Round.Refused)
			}
			if round.Round.Metrics["goodput"] <= 0 {
				t.Errorf("round %d has no goodput: %+v", round.Round.Order, round.Round)
			}
		}
		if got := strings.Join(order, " "); got != "cubic1 reno1 reno2 cubic2" {
			t.Errorf("rounds of %s: %s", c.Case.Case, got)
		}
	}
}

// Requests to nginx have the case's default congestion control unless a subject
// sets another, and the first ones have metrics of their own.
func TestRootWeb(t *testing.T) {
	testenv.Root(t)
	r, err := run(t, t.Context(), `
name: web
title: a
source: ours
expect: much
needs: ["program:nginx"]
topology: {kind: chain, hops: 2}
links: {hop2: {rtt: 20ms, forward: {rate: 50Mbit/s, queue: 2bdp}}}
traffic: {w: {kind: web, count: 30, first: 10, size: 100kB, concurrency: 3}}
subjects: [default, cubic]
baseline: default
cc: reno
fresh: true
primary: w/later/fct_p95
metrics: [w/first/fct_p95, w/later/retrans]
repeat: 1
cpu_bound: true
`)
	if err != nil {
		t.Fatal(err)
	}
	c := r.Cases[0]
	if c.Case.Refused != "" {
		t.Fatalf("refused: %s", c.Case.Refused)
	}
	for _, round := range c.Rounds {
		want := map[string]string{"default": "reno", "cubic": "cubic"}[round.Round.Subject]
		for _, connection := range round.Connections {
			if connection.CC != want {
				t.Errorf("%s: connection with %q, want %s", round.Round.Subject, connection.CC, want)
			}
		}
		for _, metric := range c.Metrics {
			if v, ok := measure.Lookup(round.Metrics, round.Groups, metric); !ok || strings.HasSuffix(metric, "p95") && (v < 0.06 || v > 2) {
				t.Errorf("%s: %s is %v, %v; three round trips are 60 ms", round.Round.Subject, metric, v, ok)
			}
		}
	}
	if len(c.Rounds) < 2 {
		t.Errorf("%d rounds", len(c.Rounds))
	}
}

// A link that cannot be what it was asked to be has no figures.
func TestRootRefused(t *testing.T) {
	testenv.Root(t)
	before := calibrationPauses
	calibrationPauses = []time.Duration{0} // it is measured once: a quiet host changes nothing
	t.Cleanup(func() { calibrationPauses = before })
	impossible := strings.Replace(two, "{rtt: 10ms}", "{rtt: 10ms, rate: 100Gbit/s, queue: 4MB}", 1)
	r, err := runWith(t, t.Context(), strings.Replace(impossible, "  - {name: near}\n", "", 1), Options{})
	if err != nil {
		t.Fatal(err)
	}
	far := r.Cases[0]
	if !strings.Contains(far.Case.Refused, "rate") || len(far.Rounds) > 0 {
		t.Errorf("refused %q with %d rounds", far.Case.Refused, len(far.Rounds))
	}
}

// A schedule changes a link within a round, and the next begins as the first: the slow
// rate, which no host can exceed, is that of the end of each round only.
func TestRootSchedule(t *testing.T) {
	testenv.Root(t)
	scheduled := strings.Replace(two, "{rtt: 10ms}", "{rtt: 10ms, rate: 100Mbit/s, schedule: [{at: 600ms, rate: 5Mbit/s}]}", 1)
	scheduled = strings.Replace(scheduled, "duration: 200ms", "duration: 1200ms, sample: 25ms", 1)
	r, err := run(t, t.Context(), strings.Replace(scheduled, "  - {name: near}\n", "", 1))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cases) != 1 || len(r.Cases[0].Rounds) != 4 {
		t.Fatalf("%d rounds, want 4: %+v", len(r.Cases[0].Rounds), r.Cases[0].Case)
	}
	most, after := 0.0, []float64{}
	for _, round := range r.Cases[0].Rounds {
		var early, late []float64
		for _, p := range round.Points {
			switch {
			case p.At > 200*time.Millisecond && p.At < 550*time.Millisecond:
				early = append(early, p.Goodput/1e6)
			case p.At > 800*time.Millisecond && p.At < 1150*time.Millisecond:
				late = append(late, p.Goodput/1e6)
			}
		}
		// A machine that stalls has less in some rounds, and catches up late.
		most, after = max(most, measure.Median(early)), append(after, measure.Median(late))
	}
	if !(measure.Median(after) < 7) {
		t.Errorf("%.1f Mbit/s of 5, after", after)
	}
	if !(most > 12) {
		t.Errorf("%.1f Mbit/s of 100 at most, before", most)
	}
}

// A run that is stopped ends soon and reports that. TestMain, which counts descriptors, and
// test/e2e check that it leaves nothing.
func TestRootStopped(t *testing.T) {
	testenv.Root(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	began := time.Now()
	r, err := run(t, ctx, strings.Replace(two, "200ms", "20s", 1))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopped with %v", err)
	}
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("it took %s to stop", d)
	}
	if r.End == nil || r.End.Stopped == "" {
		t.Errorf("the report's end: %+v", r.End)
	}
}

// A subject that fails gets no more rounds; the others have theirs.
func TestRootSubjectFails(t *testing.T) {
	testenv.Root(t)
	text := strings.Replace(two, "[cubic, reno]", "[cubic, {name: broken, begin: exit 7}]", 1)
	r, err := run(t, t.Context(), strings.Replace(text, "  - {name: near}\n", "", 1))
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("the run's error is %v", err)
	}
	rounds := map[string]int{}
	for _, round := range r.Cases[0].Rounds {
		rounds[round.Round.Subject]++
		if broken := round.Round.Subject == "broken"; broken && !strings.Contains(round.Round.Refused, "7") {
			t.Errorf("broken's round: %+v", round.Round)
		}
	}
	if rounds["broken"] != 1 || rounds["cubic"] < 2 {
		t.Errorf("rounds: %v", rounds)
	}
}
