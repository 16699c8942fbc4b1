package report

import (
	"encoding/json"
	"time"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// version is the version of the schema. It is raised if readers of the previous version
// would misread the new one.
//
//	2: round-trip times are in microseconds (min_rtt_us, srtt_us, mean_rtt_us)
//	3: names of fields say the unit (goodput_bits_per_second)
const version = 3

// record is one line of a report. Exactly one of the pointers is set, the one
// that Type names.
type record struct {
	Type  string `json:"type"` // run, case, round, connection, request, point, end
	Run   *Run   `json:"run,omitempty"`
	Case  *Case  `json:"case,omitempty"`
	Round *Round `json:"round,omitempty"`
	Data  *data  `json:"data,omitempty"` // connection, request and point
	End   *End   `json:"end,omitempty"`
}

// Run is the first line: what ran where.
type Run struct {
	Version  int       `json:"version"`
	Tcpilot  string    `json:"tcpilot"` // version of the program
	Began    time.Time `json:"began"`
	Command  string    `json:"command"` // that repeats the run
	Kernel   string    `json:"kernel"`
	CPUs     int       `json:"cpus"`
	CPU      string    `json:"cpu"`      // model
	Emulated bool      `json:"emulated"` // under QEMU, by `--kernel`
	// VirtualTime says that the emulated machine's clock counted instructions, by
	// `--virtual-time`.
	VirtualTime bool `json:"virtual_time,omitempty"`
	Quick       bool `json:"quick"`
	Repeat      int  `json:"repeat"`
}

// Case is one case of a scenario, before its rounds. If its link or host fails the
// calibration, or it cannot run here, Refused is set and no round counts.
type Case struct {
	Scenario string   `json:"scenario"`
	Case     string   `json:"case"` // empty if the scenario has only one
	Title    string   `json:"title"`
	Source   string   `json:"source"`
	Expect   string   `json:"expect"`
	Link     string   `json:"link"`     // in words
	Backend  string   `json:"backend"`  // of the links
	Primary  string   `json:"primary"`  // the metric that orders subjects
	Metrics  []string `json:"metrics"`  // those to show, Primary first
	Baseline string   `json:"baseline"` // a subject
	// Ratios says that reports also show all metrics as ratios to the baseline.
	Ratios   bool      `json:"ratios,omitempty"`
	Subjects []Subject `json:"subjects"`
	// Calibration is what the links did when they were measured.
	Calibration json.RawMessage `json:"calibration,omitempty"`
	Refused     string          `json:"refused,omitempty"` // why
}

// FullName is SCENARIO/CASE, or SCENARIO if it has only one case.
func (c *Case) FullName() string { return fullName(c.Scenario, c.Case) }

func fullName(scenario, name string) string {
	if name == "" {
		return scenario
	}
	return scenario + "/" + name
}

// NotChosen is the reason in Subject.Skipped if the user left the subject out.
const NotChosen = "not chosen"

// Subject of a case.
type Subject struct {
	Name    string `json:"name"`
	Fixed   string `json:"fixed,omitempty"`   // the congestion control, of subjects that can be the oracle
	Skipped string `json:"skipped,omitempty"` // why it does not run here
	Learns  bool   `json:"learns,omitempty"`  // from its connections
	Warmup  int    `json:"warmup,omitempty"`  // rounds before the measured ones
}

// Round is one subject's traffic, once.
type Round struct {
	Scenario   string                        `json:"scenario"`
	Case       string                        `json:"case"`
	Subject    string                        `json:"subject"`
	Repeat     int                           `json:"repeat"` // from 1; warm-ups have 0
	Order      int                           `json:"order"`  // among all rounds of the case, from 0
	Began      time.Time                     `json:"began"`
	Elapsed    time.Duration                 `json:"elapsed_ns,omitempty"` // of the traffic
	CPU        map[string]measure.CPU        `json:"cpu,omitempty"`        // by host
	Metrics    map[string]float64            `json:"metrics"`              // by name, see measure.Metrics
	Groups     map[string]map[string]float64 `json:"groups,omitempty"`     // the same by group of connections
	Errors     uint64                        `json:"errors,omitempty"`
	FirstError string                        `json:"first_error,omitempty"`
	// Refused says why the round does not count: a check of the host or a link failed.
	Refused string          `json:"refused,omitempty"`
	Host    json.RawMessage `json:"host,omitempty"`  // what the monitor of the host measured
	State   json.RawMessage `json:"state,omitempty"` // the subject's own state, last round only
}

// Measure fills in the parts of the round that come from the traffic's result.
func (r *Round) Measure(result *measure.Result) {
	r.Elapsed, r.CPU = result.Elapsed, result.CPU
	r.Metrics, r.Groups = measure.Of(result), measure.Groups(result)
	r.Errors, r.FirstError = result.Errors, result.FirstError
}

func (r *Round) metric(name string) (float64, bool) { return measure.Lookup(r.Metrics, r.Groups, name) }

// counts reports whether the round is used for figures.
func (r *Round) counts() bool { return r.Refused == "" && r.Repeat > 0 }

// data is a piece of a round, identified by the round's order. It precedes the line of
// its round, so that a round whose line exists is complete.
type data struct {
	Scenario   string              `json:"scenario"`
	Case       string              `json:"case"`
	Order      int                 `json:"order"`
	Connection *measure.Connection `json:"connection,omitempty"`
	Request    *measure.Request    `json:"request,omitempty"`
	Point      *measure.Point      `json:"point,omitempty"`
}

// End is the last line of a complete report.
type End struct {
	Elapsed time.Duration `json:"elapsed_ns"`
	Stopped string        `json:"stopped,omitempty"` // why the run stopped before its end
}
