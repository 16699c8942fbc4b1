package experiment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/scenario"
	"github.com/tcpilot/tcpilot/lab/subject"
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
	o.Subjects = []string{"reno", subject.KernelOnly}
	all, err = o.cases()
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range all {
		last := j.Subjects[len(j.Subjects)-1]
		if last.Name != subject.KernelOnly || last.Kind != subject.Tcpilot || !o.chooses(j, last) {
			t.Errorf("%s: a subject that a word stands for is not added: %+v", j.title(), j.Subjects)
		}
	}
	o.Subjects = nil
	if same, _ := o.cases(); len(same[0].Subjects) != len(all[0].Subjects)-1 {
		t.Error("it is there still when it is not asked for")
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

// A round is invalid if its link dropped packets itself, was late too often, or carried
// aggregates without being asked to.
func TestInvalidLinkCounters(t *testing.T) {
	plain := func(c link.Counters) counts { return counts{"a forward": {Counters: c}, "b forward": {}} }
	before := plain(link.Counters{Passed: 1000, Aggregates: 4, Failed: 3, Late: 5})
	if err := plain(link.Counters{Passed: 3000, Aggregates: 4, Failed: 3, Late: 15}).check(before, lateShare); err != nil {
		t.Errorf("what was before, and a few late ones: %v", err)
	}
	after := plain(link.Counters{Passed: 3000, Aggregates: 7, Failed: 5, Late: 100})
	err := after.check(before, lateShare)
	for _, want := range []string{"2 packets", "late", "3 packets of link a forward were aggregates"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("two failed, many late, three aggregates: %v, want %q in it", err, want)
		}
	}
	offloads := counts{"a forward": {link.Counters{Passed: 3000, Aggregates: 700}, true}}
	if err := offloads.check(counts{}, lateShare); err != nil {
		t.Errorf("with offloads on: %v", err)
	}
}

// A direction whose offloads a schedule turns on is one that may have aggregates.
func TestOffloads(t *testing.T) {
	on, off := link.Spec{Offload: true}, link.Spec{}
	for _, tc := range []struct {
		link              scenario.Link
		forward, backward bool
	}{
		{scenario.Link{}, false, false},
		{scenario.Link{Forward: on, Backward: off}, true, false},
		{scenario.Link{Schedule: []scenario.Change{{Forward: off, Backward: off}, {Forward: off, Backward: on}}}, false, true},
	} {
		if f, b := (duplex{Link: tc.link}).offloads(); f != tc.forward || b != tc.backward {
			t.Errorf("offloads of %+v: %t, %t", tc.link, f, b)
		}
	}
}

// What does not run is not counted: what is not chosen, and what is not installed.
func TestEstimate(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(subject.BpftuneEnv, "")
	t.Setenv(subject.BpftuneCacheEnv, t.TempDir())
	estimate := func(o Options) time.Duration {
		t.Helper()
		o.Scenarios = []*scenario.Scenario{read(t, strings.Replace(two, "[cubic, reno]", "[cubic, reno, bpftune]", 1))}
		d, err := o.Estimate()
		if err != nil || d <= 0 {
			t.Fatalf("%+v: %s, %v", o, d, err)
		}
		return d
	}
	all := estimate(Options{})
	if both, err := (Options{Scenarios: []*scenario.Scenario{read(t, two)}}).Estimate(); err != nil || both != all {
		t.Errorf("without bpftune %s, %v; with a bpftune that is not there %s", both, err, all)
	}
	if one := estimate(Options{Cases: []string{"far"}}); one != all/2 {
		t.Errorf("one of two like cases: %s of %s", one, all)
	}
	if more := estimate(Options{Repeat: 20}); more <= all {
		t.Errorf("2 rounds: %s, 20 rounds: %s", all, more)
	}
	// The baseline runs whatever is chosen.
	if reno, cubic := estimate(Options{Subjects: []string{"reno"}}), estimate(Options{Subjects: []string{"cubic"}}); reno != all || cubic >= all {
		t.Errorf("reno %s, cubic %s, both %s", reno, cubic, all)
	}
	if _, err := (Options{Scenarios: []*scenario.Scenario{read(t, two)}, Cases: []string{"nowhere"}}).Estimate(); err == nil {
		t.Error("an estimate of a case that is not there")
	}
	there := filepath.Join(t.TempDir(), "bpftune")
	if err := os.WriteFile(there, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(subject.BpftuneEnv, there)
	if with := estimate(Options{}); with <= all {
		t.Errorf("with bpftune %s, without %s", with, all)
	}
}

func TestPace(t *testing.T) {
	var last Progress
	o := Options{Scenarios: []*scenario.Scenario{read(t, two)}}
	jobs, err := o.cases()
	if err != nil {
		t.Fatal(err)
	}
	o.Progress = func(now Progress) { last = now }
	p := newPace(jobs, o)
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
