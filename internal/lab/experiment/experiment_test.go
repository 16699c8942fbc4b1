package experiment

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/lab/link"
	"github.com/tcpilot/tcpilot/internal/lab/scenario"
)

const two = `
name: two
title: t
source: s
expect: e
topology: {kind: chain, hops: 1}
traffic:
  bulk: {kind: bulk, duration: 200ms}
subjects: [cubic, reno]
baseline: cubic
primary: goodput
repeat: 2
cases:
  - {name: near}
  - {name: far, links: {hop1: {rtt: 10ms}}}
`

// read reads a scenario that is right.
func read(t *testing.T, text string) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Read("test.yaml", []byte(text), scenario.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestChoice(t *testing.T) {
	o := Options{Scenarios: []*scenario.Scenario{read(t, two)}, Repeat: 7}
	all, err := o.cases()
	if err != nil || len(all) != 2 || all[0].title() != "two, near" || all[1].Repeat != 7 {
		t.Errorf("cases() = %+v, %v", all, err)
	}
	o.Cases = []string{"far"}
	if one, err := o.cases(); err != nil || len(one) != 1 || one[0].Name != "far" {
		t.Errorf("chosen: %+v, %v", one, err)
	}
	o.Cases = []string{"far", "farther"}
	if _, err := o.cases(); err == nil || !strings.Contains(err.Error(), `"farther"`) || !strings.Contains(err.Error(), `"near"`) {
		t.Errorf("a case that is not there: %v", err)
	}
	o.Cases, o.Subjects = nil, []string{"reno", "vegan"}
	if _, err := o.cases(); err == nil || !strings.Contains(err.Error(), `"vegan"`) {
		t.Errorf("a subject that is not there: %v", err)
	}
}

func TestLacking(t *testing.T) {
	if why := lacking([]string{"cc:cubic"}, []string{"reno", "cubic"}); why != "" {
		t.Errorf("cubic is there: %s", why)
	}
	if why := lacking([]string{"program:sh"}, nil); why != "" {
		t.Errorf("sh is there: %s", why)
	}
	if why := lacking([]string{"program:no-such"}, nil); !strings.Contains(why, "install the package no-such") {
		t.Errorf("no-such is not there: %q", why)
	}
	why := lacking([]string{"cc:dctcp"}, []string{"reno", "cubic"})
	if !strings.Contains(why, "dctcp") || !strings.Contains(why, "--kernel") {
		t.Errorf("dctcp is not there: %q", why)
	}
}

func TestTrouble(t *testing.T) {
	before := counts{"a forward": {Passed: 1000, Failed: 3, Late: 5}}
	if err := (counts{"a forward": {Passed: 3000, Failed: 3, Late: 15}}).trouble(before, lateShare); err != nil {
		t.Errorf("what was before, and a few late ones: %v", err)
	}
	after := counts{"a forward": {Passed: 3000, Failed: 5, Late: 100}, "b forward": link.Counters{}}
	err := after.trouble(before, lateShare)
	if err == nil || !strings.Contains(err.Error(), "2 packets") || !strings.Contains(err.Error(), "late") {
		t.Errorf("two failed, many late: %v", err)
	}
}

func TestPace(t *testing.T) {
	var last Progress
	o := Options{Scenarios: []*scenario.Scenario{read(t, two)}}
	jobs, err := o.cases()
	if err != nil {
		t.Fatal(err)
	}
	p := newPace(jobs, func(now Progress) { last = now })
	p.begin(jobs[0])
	p.expect(4)
	p.step("round")
	if last.Done != 0 || last.Remains <= 0 || last.Case != "two, near" || last.Step != "round" {
		t.Errorf("at the begin: %+v", last)
	}
	for range 10 { // more than expected
		p.advance()
	}
	p.step("round")
	half := float64(jobs[0].Estimate()) / float64(jobs[0].Estimate()+jobs[1].Estimate())
	if diff := last.Done - half; diff < -1e-6 || diff > 1e-6 {
		t.Errorf("after the first case %v is done, want %v", last.Done, half)
	}
	p.begin(jobs[1])
	p.expect(2)
	p.advance()
	p.advance()
	p.step("end")
	if last.Done < 0.999999 || last.Remains > time.Second {
		t.Errorf("at the end: %+v", last)
	}
}
