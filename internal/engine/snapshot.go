package engine

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Snapshot is the state of the engine at one time. It is immutable: readers
// share it without locks.
type Snapshot struct {
	At      time.Time `json:"at"`
	Started time.Time `json:"started"`
	// Learner is the learner's name: thompson or epsilon-greedy.
	Learner string       `json:"learner"`
	Mode    string       `json:"mode"` // tune, or observe: nothing is set on any connection
	Rules   []RuleState  `json:"rules"`
	Arms    Arms         `json:"arms"`
	Yields  []Yield      `json:"yields"`
	Paths   []*PathState `json:"paths"` // most samples first
	Totals  Totals       `json:"totals"`
}

// RuleState is one rule in force, in the order of matching.
type RuleState struct {
	Name      string    `json:"name"`
	Class     uint32    `json:"class"`
	Match     string    `json:"match"`               // for people: "remote 10.0.0.0/8, local port 443"
	Action    string    `json:"action"`              // leave, set, learn, set+learn, limit, on_rto, watch or none
	Set       []Setting `json:"set,omitempty"`       // fixed fields
	CC        tcp.CC    `json:"cc,omitzero"`         // fixed congestion control
	Arms      []tcp.CC  `json:"arms,omitempty"`      // what is learned among
	Objective string    `json:"objective,omitempty"` // throughput, latency, fct, realtime
	HoldOut   float64   `json:"hold_out"`            // share, 0 to 1
	Adapt     []string  `json:"adapt,omitempty"`     // fields that are computed for each path
	// AdaptBounds are bounds of these fields that the rule sets: greatest windows, least timeouts.
	AdaptBounds []Setting `json:"adapt_bounds,omitempty"`
	// RateLimit bounds the rate of the rule's connections; absent: nothing does.
	RateLimit *RateLimit `json:"rate_limit,omitempty"`
	// OnRTO is what connections get after repeated retransmission timeouts; absent: nothing.
	OnRTO         *OnRTO   `json:"on_rto,omitempty"`
	SwitchRunning bool     `json:"switch,omitempty"`  // running connections are switched to a much better arm
	Rollout       *Rollout `json:"rollout,omitempty"` // nil: the rule leaves its connections alone
	// Watch names the events that are counted of a share of the rule's connections.
	Watch      []string `json:"watch,omitempty"`
	WatchShare float64  `json:"watch_share,omitempty"` // 0 to 1
	// Gain is over all connections of the rule, without the differences between its paths.
	// For a rule that learns nothing it is known only during a partial rollout.
	Gain learn.Gain `json:"gain"`
	// LeftToDefault is set while the rule is suspended because it did worse than the default.
	LeftToDefault *LeftToDefault `json:"left_to_default,omitempty"`
	Paths         int            `json:"paths"`   // learned paths in this class
	Samples       uint64         `json:"samples"` // samples of this class since start
}

// OnRTO is the congestion control that running connections get once their retransmission timer has expired
// After times.
type OnRTO struct {
	CC    tcp.CC  `json:"cc"`
	After int     `json:"after"`
	Share float64 `json:"share"` // of the rule's connections, 0 to 1
}

// RateLimit bounds the rate at which the connections of a rule send.
type RateLimit struct {
	Total      uint64 `json:"total_rate_bytes_per_second,omitempty"`      // of all of them together
	Connection uint64 `json:"connection_rate_bytes_per_second,omitempty"` // of each
}

// Setting is one field with its value and why it has it.
type Setting struct {
	Field  string `json:"field"`
	Value  uint64 `json:"value"`
	Unit   string `json:"unit,omitempty"`
	Reason string `json:"reason"` // from policy.Reason's closed list
	// Why says more than Reason: of a value computed from metrics, the metrics.
	Why string `json:"why,omitempty"`
	// Configured is the value as written in the file; only 'tcpilot check' sets it.
	Configured string `json:"configured,omitempty"`
}

// Computed reports whether the value was computed from the metrics of a path.
func (s *Setting) Computed() bool { return s.Reason == policy.FromMetrics.String() }

// KernelField is a field that connections have from the kernel, although their rule adapts it.
type KernelField struct {
	Field string `json:"field"`
	Why   string `json:"why"` // with figures
}

// Yield is a field that tcpilot no longer sets, because somebody changed the kernel's
// default for it.
type Yield struct {
	// NetNS is the network namespace whose default changed: name or cookie. Empty is the
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
	PolicyID uint32    `json:"policy_id"`
	Reason   string    `json:"reason"` // why this policy: policy.Reason
	Expires  time.Time `json:"expires"`
	LastUsed time.Time `json:"last_used"`
	Samples  uint64    `json:"samples"`
	Set      []Setting `json:"set,omitempty"`
	// Kernel are the fields that the rule adapts and that are left to the kernel now. Only an
	// explanation and a replay have them.
	Kernel  []KernelField `json:"kernel,omitempty"`
	Arms    []PathArm     `json:"arms"`
	Slice   time.Duration `json:"slice_ns"` // how long one draw of an arm lasts
	HoldOut PathHoldOut   `json:"hold_out"`
	// LeftToDefault is set while the path has kernel defaults because it did worse than the hold-out.
	LeftToDefault *LeftToDefault `json:"left_to_default,omitempty"`
	// Switched compares running connections that got another arm with those that kept theirs.
	Switched *Switched `json:"switched,omitempty"`
	PathMetrics
}

// Switched compares the running connections of a path that got another congestion control with those, one in 16, that kept
// theirs. Each is one observation, from its second sample after the decision on.
type Switched struct {
	To       tcp.CC       `json:"to"`    // what they got
	Since    time.Time    `json:"since"` // first sample after the decision
	Switched RunningGroup `json:"switched"`
	Kept     RunningGroup `json:"kept"`
	// Gain is by what factor the reward of those switched is greater. Both groups share the path, so it is not what all of
	// them gain.
	Gain learn.Gain `json:"gain"`
	// Stopped is set while no running connection of the path is switched, because those that were did worse.
	Stopped *LeftToDefault `json:"stopped,omitempty"`
}

// RunningGroup describes running connections of a path since the same time.
type RunningGroup struct {
	Connections int     `json:"connections"`                        // at most 16
	Goodput     uint64  `json:"goodput_bytes_per_second,omitempty"` // geometric mean; 0: unknown
	Retrans     float64 `json:"retrans_share"`                      // of their data packets, 0 to 1
}

// PathMetrics is what the samples of a path show of the network: package estimate. The
// direction is from this host to the remote one unless a field says otherwise.
type PathMetrics struct {
	MinRTT      uint32  `json:"min_rtt_us"`                     // microseconds, least of the last 5 to 10 minutes; 0 is unknown
	SRTT        uint32  `json:"srtt_us"`                        // microseconds, smoothed; 0 is unknown
	RTTVar      uint32  `json:"rttvar_us"`                      // microseconds, its variation
	Rate        uint64  `json:"delivery_rate_bytes_per_second"` // greatest of the last 1 to 2 minutes, not limited by the application; 0 is unknown
	ReceiveRate uint64  `json:"receive_rate_bytes_per_second"`  // greatest at which a connection received; 0 is unknown
	Carried     uint64  `json:"carried"`                        // packets, most that connections had in flight together without a loss in the last 15 to 30 seconds; 0 is unknown
	Ssthresh    uint64  `json:"ssthresh"`                       // packets, greatest slow start threshold of the last 15 to 30 seconds; 0 is unknown
	LossShare   float64 `json:"loss_share"`                     // of the recent data packets, 0 to 1
	DataSegs    uint64  `json:"data_segs_out"`                  // number of these; 0: LossShare is unknown
	Active      *uint32 `json:"active_connections,omitempty"`   // established now; absent: not counted, because nothing needs it
	// RateLimit is that of a policer on the path: the greatest rate of payload at which the path's
	// paced connections together lost nothing; 0: none was found. RateLimitWhy is its evidence, or
	// that of a limit that is searched for.
	RateLimit    uint64 `json:"rate_limit_bytes_per_second,omitempty"`
	RateLimitWhy string `json:"rate_limit_why,omitempty"`
	// RTOMin is what new connections get if the rule adapts it: the kernel's value or an adapted
	// one; 0: it does not.
	RTOMin time.Duration `json:"rto_min_ns,omitempty"`
	// RTOMinBarred is set while a value of RTO_MIN is not used on the path, because it caused
	// spurious retransmissions.
	RTOMinBarred *BarredRTOMin `json:"rto_min_barred,omitempty"`
	// Peer is what hosts of the path told in the peer option, if the rule has it.
	Peer    *PeerTold `json:"peer,omitempty"`
	Updated time.Time `json:"measured_at,omitzero"` // time of the latest sample; the last minutes are those before it
	// NetworkType is unknown, datacentre, lan, wifi, cellular, long-fat, satellite, policed or bufferbloated.
	NetworkType string `json:"network_type"`
	// NetworkWhy has the metrics that led to it, with their bounds; of unknown, what is missing.
	NetworkWhy estimate.NetworkReason `json:"network_why"`
}

// BarredRTOMin is a value of RTO_MIN that is too short for a path.
type BarredRTOMin struct {
	RTOMin time.Duration `json:"rto_min_ns"` // this value and shorter ones are not used ...
	Until  time.Time     `json:"until"`      // ... until then
	For    time.Duration `json:"for_ns"`     // the length of that time
}

// PeerTold is what the latest host of a path told in the peer option.
type PeerTold struct {
	Delack  time.Duration `json:"delack_ns,omitempty"`     // longest delay of ACKs; 0: no host told one
	Receive uint64        `json:"receive_bytes,omitempty"` // how much it can receive at a time, rounded down to a power of two; 0: unknown
	At      time.Time     `json:"at,omitzero"`             // when it told that
	LostAt  time.Time     `json:"lost_at,omitzero"`        // when a SYN with the option was sent again without it, and answered then
}

// PathArm is one arm of a path, with the belief in its reward.
type PathArm struct {
	CC      tcp.CC  `json:"cc"`
	Default bool    `json:"default,omitempty"` // what connections get without tcpilot
	Weight  float64 `json:"weight"`            // share of the next slices of time, 0 to 1
	Count   uint64  `json:"count"`             // connections that were scored
	Greedy  uint64  `json:"greedy"`            // the part of count that was drawn while it was the best known
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

// Recent describes the latest connections. If the hosts of a prefix have paths of their own,
// only retransmits are known for the prefix.
type Recent struct {
	// Goodput is the geometric mean of bytes acknowledged over the time with data
	// outstanding, bytes/s; 0 is unknown, as of rules that do not learn for throughput.
	Goodput  uint64  `json:"goodput_bytes_per_second,omitempty"`
	Retrans  float64 `json:"retrans_share"`     // of the data packets, 0 to 1
	DataSegs uint64  `json:"data_segs_out"`     // number of data packets counted; 0: unknown
	SRTT     uint32  `json:"srtt_us,omitempty"` // microseconds, typical; 0 is unknown
}

// ArmRetirement says why a path does not use an arm.
type ArmRetirement struct {
	Guard string    `json:"guard"` // reward-collapse, goodput-collapse, retransmit-storm, marks-lost
	Why   string    `json:"why"`   // with figures
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // then it is tried again
}

// PathHoldOut compares the connections left at kernel defaults with the rest.
type PathHoldOut struct {
	Share  float64 `json:"share"`  // of connections held out, in slices of time or one by one
	Slices float64 `json:"slices"` // the part of share that is whole slices of time
	// More is by what factor more slices are held out than usual, because recent ones were faster; absent if no more are.
	More  float64 `json:"more,omitempty"`
	Count uint64  `json:"count"` // connections held out that were scored
	Recent
	// Gain is by what factor the other connections are faster, with its interval.
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
	Samples      map[string]uint64 `json:"samples"`        // by kind
	Connections  map[string]uint64 `json:"connections"`    // that the samples stand for, by kind
	Unattributed uint64            `json:"unattributed"`   // samples whose class no longer exists: begun under earlier rules, or an earlier process
	Ignored      map[string]uint64 `json:"ignored"`        // samples not scored, by reason
	Decisions    map[string]uint64 `json:"decisions"`      // policies written, by reason
	Retired      map[string]uint64 `json:"retired"`        // arms retired on a path, by guard
	RTOMinBarred map[string]uint64 `json:"rto_min_barred"` // values of RTO_MIN found too short for a path, by value in seconds
	// Packets of raised initial windows, those of them that were lost, and how often paths had their windows halved because of that.
	InitialPackets uint64 `json:"initial_window_packets"`
	InitialLost    uint64 `json:"initial_window_lost_packets"`
	InitialHalved  uint64 `json:"initial_windows_halved"`

	Paths        int           `json:"paths"`               // beliefs in memory
	PathLimit    int           `json:"path_limit"`          // greatest number of beliefs in memory
	Evicted      uint64        `json:"evicted"`             // beliefs dropped because of the path limit
	RolledBack   uint64        `json:"rolled_back"`         // rollouts that guards set to 0
	Ticks        uint64        `json:"ticks"`               // rounds of decisions
	TickTime     time.Duration `json:"tick_ns"`             // time spent deciding and writing
	Writes       uint64        `json:"writes"`              // policies written
	WriteErrors  uint64        `json:"write_errors"`        // policies that could not be written
	StoreErrors  uint64        `json:"store_errors"`        // beliefs that could not be saved
	LastSaved    time.Time     `json:"last_saved,omitzero"` // zero is never
	ObserveCount uint64        `json:"observe_count"`       // samples that updated a belief
}

// Gain is by what factor connections are faster than those held out, with its interval.
type Gain = learn.Gain
