package engine

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Snapshot is the state of the engine at one moment. It is immutable: readers
// share it without locks.
type Snapshot struct {
	At      time.Time `json:"at"`
	Started time.Time `json:"started"`
	// Learner is the learner's name: thompson or epsilon-greedy.
	Learner string       `json:"learner"`
	Mode    string       `json:"mode"` // tune, or observe: nothing is set on any connection
	Rules   []RuleState  `json:"rules"`
	Arms    []ArmState   `json:"arms"`
	Yields  []Yield      `json:"yields"`
	Paths   []*PathState `json:"paths"` // most samples first
	Totals  Totals       `json:"totals"`
}

// RuleState is one rule in force, in the order of matching.
type RuleState struct {
	Name      string    `json:"name"`
	Class     uint32    `json:"class"`
	Match     string    `json:"match"`               // for people: "remote 10.0.0.0/8, local port 443"
	Action    string    `json:"action"`              // leave, set, learn, set+learn
	Set       []Setting `json:"set,omitempty"`       // fixed fields
	CC        tcp.CC    `json:"cc,omitzero"`         // fixed congestion control
	Arms      []tcp.CC  `json:"arms,omitempty"`      // what is learned among
	Objective string    `json:"objective,omitempty"` // throughput, latency, fct, realtime
	HoldOut   float64   `json:"hold_out"`            // share, 0 to 1
	Rollout   *Rollout  `json:"rollout,omitempty"`   // nil: the rule leaves its connections alone
	// Watch names the events that are counted of a share of the rule's connections.
	Watch      []string `json:"watch,omitempty"`
	WatchShare float64  `json:"watch_share,omitempty"` // 0 to 1
	// Gain is over all connections of the rule, what its paths differ in taken out. Of a
	// rule that learns nothing it is known while it is rolled out to a part of them.
	Gain learn.Gain `json:"gain"`
	// LeftToDefault is set while the rule does nothing, since it did worse.
	LeftToDefault *LeftToDefault `json:"left_to_default,omitempty"`
	Paths         int            `json:"paths"`   // learned paths in this class
	Samples       uint64         `json:"samples"` // samples of this class since start
}

// Setting is one field with its value and why it has it.
type Setting struct {
	Field  string `json:"field"`
	Value  uint64 `json:"value"`
	Unit   string `json:"unit,omitempty"`
	Reason string `json:"reason"` // from policy.Reason's closed list
	// Configured is the value as the file has it; only 'tcpilot check' knows it.
	Configured string `json:"configured,omitempty"`
}

// ArmState is a congestion control that tcpilot may choose.
type ArmState struct {
	CC       tcp.CC `json:"cc"`
	State    string `json:"state"` // active, retired, missing
	Reason   string `json:"reason,omitempty"`
	Failures uint64 `json:"failures"` // times that the kernel refused it
}

// Yield is a field that tcpilot no longer sets, since somebody changed the
// kernel's default for it.
type Yield struct {
	// NetNS is the network namespace that it is about: name or cookie. Empty is the
	// daemon's own.
	NetNS  string    `json:"netns,omitempty"`
	Field  string    `json:"field"` // cc or a field's name
	Sysctl string    `json:"sysctl"`
	Before string    `json:"before"`
	After  string    `json:"after"`
	Since  time.Time `json:"since"`
}

// PathState is what is known of one path and what it gives to new connections.
type PathState struct {
	Key    path.Key `json:"-"`
	Rule   string   `json:"rule"`
	Scope  uint64   `json:"scope,omitempty"` // network namespace cookie; 0 is shared
	Prefix string   `json:"prefix"`
	// PolicyID, Expires, arms' weights, Slice and the hold-out's share are of the policy that
	// its connections get: its own, or that of an enclosing prefix.
	PolicyID uint32        `json:"policy_id"`
	Reason   string        `json:"reason"` // why this policy: policy.Reason
	Expires  time.Time     `json:"expires"`
	LastUsed time.Time     `json:"last_used"`
	Samples  uint64        `json:"samples"`
	Set      []Setting     `json:"set,omitempty"`
	Arms     []PathArm     `json:"arms"`
	Slice    time.Duration `json:"slice_ns"` // for which one draw of an arm holds
	HoldOut  PathHoldOut   `json:"hold_out"`
	// LeftToDefault is set while the path has kernel defaults, since it did worse.
	LeftToDefault *LeftToDefault `json:"left_to_default,omitempty"`
	MinRTT        uint32         `json:"min_rtt_us"`                     // microseconds, least recent; 0 is unknown
	SRTT          uint32         `json:"srtt_us"`                        // microseconds, of the latest sample; 0 is unknown
	Rate          float64        `json:"delivery_rate_bytes_per_second"` // greatest recent
}

// PathArm is one arm of a path: what it is believed to be worth.
type PathArm struct {
	CC      tcp.CC  `json:"cc"`
	Default bool    `json:"default,omitempty"` // what connections get without tcpilot
	Weight  float64 `json:"weight"`            // share of the next slices of time, 0 to 1
	Count   uint64  `json:"count"`             // connections that were scored
	Greedy  uint64  `json:"greedy"`            // of these, taken while it was the best known
	Mean    float64 `json:"mean"`              // believed reward, in the objective's unit (natural log)
	StdDev  float64 `json:"std_dev"`           // of that belief; 0 if the learner has none
	MinRTT  uint32  `json:"min_rtt_us"`        // microseconds, least recent; 0 is unknown
	// Rate is the greatest recent delivery rate.
	Rate     uint64    `json:"delivery_rate_bytes_per_second"`
	LastUsed time.Time `json:"last_used,omitzero"` // zero is never
	Recent
	// Retired is set while a guard keeps the arm from the path.
	Retired *ArmRetirement `json:"retired,omitempty"`
}

// Recent is what the latest connections were like. It is not known of a prefix the hosts of
// which are told apart (they are paths of their own), except for retransmits.
type Recent struct {
	// Goodput is the geometric mean of bytes acknowledged over the time with data
	// outstanding, bytes/s; 0 is unknown, as of rules that do not learn for throughput.
	Goodput  uint64  `json:"goodput_bytes_per_second,omitempty"`
	Retrans  float64 `json:"retrans_share"`     // of the data packets, 0 to 1
	DataSegs uint64  `json:"data_segs_out"`     // that this is known from; 0: it is not known
	SRTT     uint32  `json:"srtt_us,omitempty"` // microseconds, typical; 0 is unknown
}

// ArmRetirement says why an arm is none on one path.
type ArmRetirement struct {
	Guard string    `json:"guard"` // reward-collapse, goodput-collapse, retransmit-storm, marks-lost
	Why   string    `json:"why"`   // with figures
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // then it is tried again
}

// PathHoldOut compares the connections left at kernel defaults with the rest.
type PathHoldOut struct {
	Share  float64 `json:"share"`  // of connections held out, in slices of time or one by one
	Slices float64 `json:"slices"` // of it, in whole slices of time
	Count  uint64  `json:"count"`  // connections held out that were scored
	Recent
	// Gain is by what factor the others are faster, with its interval.
	Gain learn.Gain `json:"gain"`
}

// LeftToDefault says why and how long a path, or all of a rule, has kernel defaults.
type LeftToDefault struct {
	Why   string    `json:"why"` // with figures
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // then it is tuned again
}

// Totals count since the engine started.
type Totals struct {
	Samples      map[string]uint64 `json:"samples"`             // by kind
	Connections  map[string]uint64 `json:"connections"`         // that these stand for
	Unattributed uint64            `json:"unattributed"`        // samples of no class that exists: begun under earlier rules, or an earlier process
	Ignored      map[string]uint64 `json:"ignored"`             // samples not scored, by why
	Decisions    map[string]uint64 `json:"decisions"`           // policies written, by reason
	Guarded      map[string]uint64 `json:"guarded"`             // arms taken from a path, by guard
	Paths        int               `json:"paths"`               // beliefs held
	PathLimit    int               `json:"path_limit"`          //
	Evicted      uint64            `json:"evicted"`             // beliefs dropped for want of room
	RolledBack   uint64            `json:"rolled_back"`         // rollouts that guards took back
	Ticks        uint64            `json:"ticks"`               //
	TickTime     time.Duration     `json:"tick_ns"`             // time spent deciding and writing
	Writes       uint64            `json:"writes"`              // policies written
	WriteErrors  uint64            `json:"write_errors"`        // policies that could not be written
	StoreErrors  uint64            `json:"store_errors"`        // beliefs that could not be saved
	LastSaved    time.Time         `json:"last_saved,omitzero"` // zero is never
	ObserveCount uint64            `json:"observe_count"`       // samples folded into a belief
}

// Gain is by what factor connections are faster than those held out, with its interval.
type Gain = learn.Gain
