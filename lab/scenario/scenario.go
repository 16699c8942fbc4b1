package scenario

import (
	"time"

	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/subject"
	"github.com/tcpilot/tcpilot/lab/topology"
	"github.com/tcpilot/tcpilot/lab/workload"
)

// Scenario is one file: what its cases have in common, and the cases.
type Scenario struct {
	Name   string
	Title  string
	Source string // where the experiment comes from
	Expect string // what is expected to come out, and why
	// Needs are what the machine must have: "netem", "fq", a congestion control as
	// "cc:dctcp", or a program as "program:iperf3". They are checked before the run,
	// and missing ones are reported.
	Needs []string
	Cases []Case
}

// Case is one experiment, with everything filled in that it inherits from its scenario.
type Case struct {
	Name  string // unique within the scenario; empty if it is the only one
	Graph topology.Graph
	Links map[string]Link // by edge; an edge without one does nothing to packets
	// Tuned names the hosts that subjects act on.
	Tuned    []string
	Traffic  []workload.Spec
	Subjects []subject.Spec
	Baseline string // name of a subject
	CC       string // see DefaultCC
	Primary  string // metric, see measure.Metrics; "GROUP/METRIC" for one group
	Metrics  []string
	Repeat   int           // rounds that count, for each subject
	Warmup   int           // rounds before, for subjects that learn
	Pause    time.Duration // between rounds
	// CPUBound says that the processors are the intended bottleneck, so that saturated
	// processors do not invalidate a round.
	CPUBound bool
	Sysctls  map[string]string // net.* of all hosts, such as net.ipv4.tcp_ecn
	// Fresh makes subjects that learn begin each round without anything learned.
	Fresh bool
	// Ratios makes reports also show all metrics as ratios to the baseline.
	Ratios bool
}

// DefaultCC is the congestion control of hosts whose subject does not set one: the
// case's own, else the baseline's, else that of the machine (empty).
func (c Case) DefaultCC() string {
	for _, s := range c.Subjects {
		if c.CC == "" && s.Name == c.Baseline {
			return s.CC
		}
	}
	return c.CC
}

// Link is what a link does, and when that changes.
type Link struct {
	Forward, Backward link.Spec
	Schedule          []Change // by time
}

// Change is what a link does from a certain time in each round on; the next round
// starts with the link's original state.
type Change struct {
	At                time.Duration
	Forward, Backward link.Spec
}

// Options choose a variant of a scenario.
type Options struct {
	// Quick applies the file's quick section: fewer and shorter rounds.
	Quick bool
	// Emulated applies the file's emulated section, for slow processors.
	Emulated bool
}
