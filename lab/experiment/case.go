package experiment

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/report"
	"github.com/tcpilot/tcpilot/lab/scenario"
	"github.com/tcpilot/tcpilot/lab/subject"
	"github.com/tcpilot/tcpilot/lab/workload"
)

// runCase runs one case: network, calibration, then the subjects in turn.
func runCase(ctx context.Context, j job, o Options, p *pace) (err error) {
	p.begin(j)
	p.step("build the network")
	about := j.describe()
	n, refused, err := open(ctx, j, o)
	if err != nil {
		return err
	}
	if about.Refused = refused; refused != "" {
		return o.Out.Case(about)
	}
	defer func() { err = errors.Join(err, n.close()) }()
	about.Backend = string(n.backend)
	list, err := n.newSubjects(j, o, &about)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, list.close()) }()
	p.step("calibrate")
	if err := n.calibrate(ctx, &about); err != nil {
		return err
	}
	if err := o.Out.Case(about); err != nil || about.Refused != "" {
		return err
	}
	r := &caseRun{network: n, job: j, out: o.Out, pace: p}
	return r.run(ctx, list)
}

// open builds the network of a case; refused says why that is not possible on this kernel.
func open(ctx context.Context, j job, o Options) (n *network, refused string, err error) {
	controls, err := subject.Controls()
	if err != nil {
		return nil, "", err
	}
	if refused := lacking(j.scenario.Needs, controls); refused != "" {
		return nil, refused, nil
	}
	b, err := o.Backend.For(specs(j.Case)...)
	if err != nil {
		return nil, err.Error(), nil
	}
	if n, err = build(ctx, j.Case, b); err != nil {
		return nil, "", err
	}
	n.quick, n.emulated, n.anyHost = o.Quick, o.Emulated, o.anyHost
	n.ipv6 = slices.ContainsFunc(j.Traffic, func(s workload.Spec) bool { return s.IPv6 })
	return n, "", nil
}

// specs are the settings of the links of a case, including those of schedules.
func specs(c scenario.Case) (list []link.Spec) {
	for _, l := range c.Links {
		list = append(list, l.Forward, l.Backward)
		for _, change := range l.Schedule {
			list = append(list, change.Forward, change.Backward)
		}
	}
	return list
}

// describe describes the case for the report.
func (j job) describe() report.Case {
	return report.Case{
		Scenario: j.scenario.Name, Case: j.Name,
		Title: j.scenario.Title, Source: j.scenario.Source, Expect: j.scenario.Expect,
		Link: strings.Join(j.linkDescriptions(), "; "), Primary: j.Primary, Metrics: j.Metrics, Baseline: j.Baseline,
		Ratios: j.Ratios,
	}
}

// linkDescriptions describes the links, in the graph's order.
func (j job) linkDescriptions() (list []string) {
	for _, e := range j.Graph.Edges {
		if l, ok := j.Links[e.Name]; ok {
			list = append(list, l.Describe(e.Name))
		}
	}
	return list
}

// lacking describes the first need of a scenario that this machine does not meet; empty if
// it meets all.
func lacking(needs, controls []string) string {
	const elsewhere = "another kernel may have it: see --kernel"
	for _, need := range needs {
		kind, name, _ := strings.Cut(need, ":")
		switch kind {
		case "cc":
			if !slices.Contains(controls, name) {
				return fmt.Sprintf("this kernel has no congestion control %s (it has %s); %s",
					name, strings.Join(controls, ", "), elsewhere)
			}
		case "program":
			if _, err := exec.LookPath(name); err != nil {
				return fmt.Sprintf("%s is not installed: install the package %[1]s", name)
			}
		default:
			if err := link.HasQdisc(need); err != nil {
				return fmt.Sprintf("%v; %s", err, elsewhere)
			}
		}
	}
	return ""
}
