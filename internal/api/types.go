package api

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Status is what the daemon is, what it is attached to, and what it has done.
type Status struct {
	Version string        `json:"version"`
	PID     int           `json:"pid"`
	Started time.Time     `json:"started"`
	Uptime  time.Duration `json:"uptime_ns"`
	Kernel  string        `json:"kernel"` // release

	Config       string    `json:"config"` // file; empty for the built-in defaults
	ConfigLoaded time.Time `json:"config_loaded"`
	// ConfigError is why the latest reload was refused; empty once one succeeds.
	ConfigError string `json:"config_error,omitempty"`
	// NeedRestart are keys of Config that were changed, and are in force only after a restart.
	NeedRestart []string `json:"need_restart,omitempty"`
	// Problems prevent tcpilot from working; 'tcpilot doctor' fails because of them.
	Problems []string `json:"problems,omitempty"`
	// Degraded lists what does not work as configured, Problems included. It is empty if
	// everything works.
	Degraded []string `json:"degraded"`

	Cgroup   string    `json:"cgroup"`   // path that the programs are attached to
	Attached time.Time `json:"attached"` // since when
	// Adopted: the programs were already attached by an earlier daemon.
	Adopted bool          `json:"adopted"`
	Lease   time.Duration `json:"lease_ns"` // longest time that policies outlive the daemon
	Metrics string        `json:"metrics"`  // address; empty if off

	// Mode is tune, or observe: nothing is set on any connection.
	Mode string `json:"mode"`
	// Rollouts are those of rules that apply to only a part of their connections.
	Rollouts []RuleRollout `json:"rollouts"`

	Features []Feature        `json:"features"`
	Counters metrics.Counters `json:"counters"`
	Learner  string           `json:"learner"`
	Arms     engine.Arms      `json:"arms"`
	Yields   []engine.Yield   `json:"yields"`
	Totals   engine.Totals    `json:"totals"`
	Loaded   []Loaded         `json:"loaded"` // users' own programs
	// Buffers are the raised buffer limits; absent unless buffers.adapt is on.
	Buffers *Buffers `json:"buffers,omitempty"`
	// HostSysctls are those that the host profile has set.
	HostSysctls []HostSysctl `json:"host_sysctls,omitempty"`
	// HostRoutes are those within host.usec_timestamps.
	HostRoutes []HostRoutes `json:"host_routes,omitempty"`
	// Pods says how many pods are known, and what is wrong; absent unless there are pods.
	Pods *PodStatus `json:"pods,omitempty"`
}

// PodStatus is the pods in numbers, and what is wrong with them.
type PodStatus struct {
	Count   int `json:"count"`
	Refused int `json:"refused"` // records that are not used
	// Warnings are of pods whose annotations are not followed.
	Warnings []string `json:"warnings,omitempty"`
	// Removal is the removal of the CNI plugin that waits for pods ('tcpilot cni uninstall'); absent without one.
	Removal *PluginRemoval `json:"plugin_removal,omitempty"`
}

// PluginRemoval is what the removal of the CNI plugin waits for: nothing if there are neither pods nor sandboxes.
type PluginRemoval struct {
	Since time.Time `json:"since,omitzero"` // absent if a crash of the host has damaged the removal
	Pods  []string  `json:"pods"`           // whose end needs the plugin: namespace/name, or container ids
	// Sandboxes is how many pods have ended whose sandboxes the container runtime has not removed yet, for which it needs the plugin.
	Sandboxes int `json:"sandboxes"`
}

// Buffers are the buffer limits that tcpilot has raised.
type Buffers struct {
	Limits      []BufferLimit `json:"limits"`                // raised now
	PausedUntil time.Time     `json:"paused_until,omitzero"` // nothing is raised before, because TCP was short of memory
}

// HostSysctl is a sysctl of a network namespace that has its value from the host profile.
type HostSysctl struct {
	NetNS    string    `json:"netns,omitempty"` // name or cookie; absent is the daemon's own
	Sysctl   string    `json:"sysctl"`
	Original string    `json:"original"` // restored at the end
	Value    string    `json:"value"`
	Since    time.Time `json:"since"`
}

// HostRoutes are the routes of a network namespace by which connections use timestamps in microseconds because the
// host profile has changed them.
type HostRoutes struct {
	NetNS  string   `json:"netns,omitempty"` // name or cookie; absent is the daemon's own
	Count  int      `json:"count"`
	Routes []string `json:"routes"`         // the first 20
	Left   []string `json:"left,omitempty"` // the first 20 that stay as they are, and why
}

// BufferLimit is a raised limit: the third value of a sysctl in a network namespace.
type BufferLimit struct {
	NetNS    string    `json:"netns,omitempty"` // name or cookie; empty is the daemon's own
	Sysctl   string    `json:"sysctl"`
	Original uint64    `json:"original_bytes"` // before tcpilot raised it
	Limit    uint64    `json:"limit_bytes"`
	Since    time.Time `json:"since"` // of the latest raise
	Why      string    `json:"why"`
}

// SetDegraded sets Degraded from the other fields.
func (s *Status) SetDegraded() {
	s.Degraded = slices.Clone(s.Problems)
	if s.ConfigError != "" {
		s.Degraded = append(s.Degraded, "the configuration that was read last is not in force")
	}
	for _, f := range s.Features {
		if f.Wanted && !f.Active {
			s.Degraded = append(s.Degraded, f.Name+" is not active")
		}
	}
}

// RuleRollout is the share of a rule's connections that the rule applies to.
type RuleRollout struct {
	Rule string `json:"rule"`
	engine.Rollout
}

// RolloutsOf lists the rules that apply to only a part of their connections, and those whose
// rollout was changed.
func RolloutsOf(rules []engine.RuleState) (list []RuleRollout) {
	for _, r := range rules {
		if r.Rollout != nil && (r.Rollout.Share < 1 || r.Rollout.By != "") {
			list = append(list, RuleRollout{Rule: r.Name, Rollout: *r.Rollout})
		}
	}
	return list
}

// MinRollout is the least share of a rollout that is not 0, as in the configuration: one of 1000 connections.
const MinRollout = 0.001

// RolloutRequest asks to change the rollout of a rule.
type RolloutRequest struct {
	Rule  string  `json:"rule"`
	Share float64 `json:"share"` // 0, or 0.001 to 1
}

// Feature is something that tcpilot can do if the kernel supports it.
type Feature struct {
	Name   string `json:"name"`
	Wanted bool   `json:"wanted"`
	Active bool   `json:"active"`
	Why    string `json:"why,omitempty"` // why it is not active, or how it is where the kernel lacks something
}

// PathList is a part of the snapshot's paths.
type PathList struct {
	At      time.Time `json:"at"`
	Learner string    `json:"learner"`
	Mode    string    `json:"mode"` // observe: arms' weights are what would be used
	// Rollouts are those of rules that apply to only a part of their connections.
	Rollouts []RuleRollout       `json:"rollouts,omitempty"`
	Total    int                 `json:"total"`          // paths that match; Paths may have fewer
	Next     string              `json:"next,omitempty"` // PathQuery.After of the next page; empty: this is the last page
	Paths    []*engine.PathState `json:"paths"`
}

// PathQuery selects and orders paths.
type PathQuery struct {
	Prefix netip.Prefix // paths inside it, and paths that contain it; zero is all
	Rule   string       // empty is all
	Sort   PathSort     // empty is SortSamples
	Limit  int          // 0 is no limit
	After  string       // PathList.Next of an earlier answer to the same query
}

// PathSort is an order of paths.
type PathSort string

const (
	SortSamples PathSort = "samples" // most first
	SortRecent  PathSort = "recent"  // last used first
	SortGain    PathSort = "gain"    // greatest gain over the hold-out first
	SortRTT     PathSort = "rtt"     // greatest minimum RTT first
	SortPrefix  PathSort = "prefix"  // by rule, then address
)

// PathSorts lists every order.
var PathSorts = []PathSort{SortSamples, SortRecent, SortGain, SortRTT, SortPrefix}

// RuleList is the rules in force, in the order of matching.
type RuleList struct {
	At    time.Time          `json:"at"`
	Mode  string             `json:"mode"`
	Rules []engine.RuleState `json:"rules"`
}

// ExplainRequest is a connection, which need not exist.
type ExplainRequest struct {
	Remote     netip.Addr `json:"remote"`
	RemotePort uint16     `json:"remote_port,omitempty"`
	Local      netip.Addr `json:"local,omitzero"`
	LocalPort  uint16     `json:"local_port,omitempty"`
	Cgroup     string     `json:"cgroup,omitempty"` // path
	NetNS      uint64     `json:"netns,omitempty"`  // cookie; 0 is the daemon's own
	Pod        string     `json:"pod,omitempty"`    // namespace/name, instead of netns
	Incoming   bool       `json:"incoming"`
}

// Explanation is what a new connection would get, and why.
type Explanation struct {
	Request ExplainRequest `json:"request"`
	Pod     string         `json:"pod,omitempty"` // namespace/name of the pod whose network namespace it is
	Rule    string         `json:"rule"`          // empty when none matches
	Class   uint32         `json:"class"`
	Match   string         `json:"match,omitempty"`  // the rule's conditions
	Action  string         `json:"action,omitempty"` // leave, set, learn, set+learn, limit, on_rto, watch or none
	// Reason is the decision's reason, from a closed list; Why is the same as a sentence.
	Reason string `json:"reason"`
	Why    string `json:"why"`
	// In mode observe the other fields are what a connection would get in mode tune.
	Mode   string      `json:"mode"`
	Entry  *Entry      `json:"entry,omitempty"` // longest match among the path policies
	Fields []FieldWhy  `json:"fields"`
	Arms   []ArmWeight `json:"arms"`
	// HoldOut is the share of connections that get kernel defaults, to compare the others with.
	HoldOut float64 `json:"hold_out"`
	// Rollout is the rule's; nil if it leaves its connections alone.
	Rollout *engine.Rollout `json:"rollout,omitempty"`
	// RateLimit is what the rate limit of the rule, or else of the pod, gives; absent if there is none.
	RateLimit *RateLimit `json:"rate_limit,omitempty"`
	// OnRTO is what the rule gives after repeated retransmission timeouts; absent: nothing.
	OnRTO *engine.OnRTO `json:"on_rto,omitempty"`
	// Path is what is known of the exact path of the remote address, if anything.
	Path *engine.PathState `json:"path,omitempty"`
	// Network is the type of network of the path, also if too little is known of it; absent if the rule does not learn.
	Network *engine.NetworkType `json:"network,omitempty"`
	// Live has the latest samples of connections to the remote address whose congestion
	// control reports its state.
	Live  []Sample `json:"live,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// RateLimit is the rate limit of a rule, or of the TCP that a pod sends, and what one more connection gets of it.
type RateLimit struct {
	metrics.LimitCount
	New  uint64 `json:"new_rate_bytes_per_second"`            // what one more connection gets
	Left uint64 `json:"left_rate_bytes_per_second,omitempty"` // of the total, to other traffic of the pod; absent: less than a hundredth
	Why  string `json:"why"`
}

// Entry is a row of the kernel's policy table.
type Entry struct {
	Prefix   string    `json:"prefix"`
	Scope    uint64    `json:"scope,omitempty"`
	PolicyID uint32    `json:"policy_id"`
	Reason   string    `json:"reason"`
	Expires  time.Time `json:"expires"`
	Expired  bool      `json:"expired"`
}

// FieldWhy is one field of a connection and why it has, or lacks, a value.
type FieldWhy struct {
	engine.Setting
	Applied bool `json:"applied"` // false: wanted, but left to the kernel; Why says why
	// Kernel: the rule adapts the field, and connections have the kernel's value now; Value is 0.
	Kernel bool `json:"kernel,omitempty"`
}

// ArmWeight is the share of one congestion control.
type ArmWeight struct {
	CC     tcp.CC  `json:"cc"`
	Weight float64 `json:"weight"` // 0 to 1
	Why    string  `json:"why,omitempty"`
}

// Doctor is what this kernel allows tcpilot to do, found by trying it.
type Doctor struct {
	Kernel   string        `json:"kernel"`
	Cgroup   string        `json:"cgroup"`
	Features []Feature     `json:"features"`
	Options  []OptionCheck `json:"options"`
	Arms     engine.Arms   `json:"arms"`
	// PodDevices are the kinds of devices that tcpilot-cni can make for pods as the main plugin.
	PodDevices []PodDevice    `json:"pod_devices"`
	Conflicts  []Conflict     `json:"conflicts"`
	Yields     []engine.Yield `json:"yields,omitempty"`
	Ready      []Readiness    `json:"ready,omitempty"`    // for what tcpilot does not do by itself
	Problems   []string       `json:"problems,omitempty"` // as in Status
	// Removal is the removal of the CNI plugin that waits for pods, as in PodStatus.
	Removal *PluginRemoval `json:"plugin_removal,omitempty"`
}

// PodDevice says whether the kernel can make a kind of device pair for pods.
type PodDevice struct {
	Device    string `json:"device"` // veth, netkit
	Available bool   `json:"available"`
	Why       string `json:"why,omitempty"` // why not
}

// Readiness says whether the host can do something that needs the application, routes or the network card.
type Readiness struct {
	What  string `json:"what"`
	Ready bool   `json:"ready"`
	Why   string `json:"why"` // what was found
}

// OptionCheck says whether the kernel accepted one field at one hook.
type OptionCheck struct {
	Field    string `json:"field"`
	Option   string `json:"option"` // kernel's name
	Hook     string `json:"hook"`   // connect, active-established, passive-established...
	Accepted bool   `json:"accepted"`
	Error    string `json:"error,omitempty"`
}

// Conflict is another program that may change what tcpilot changes.
type Conflict struct {
	Kind   string `json:"kind"`   // program: another sock_ops program, attached to tcpilot's cgroup or above; leftover: one of another tcpilot
	What   string `json:"what"`   // "sock_ops program 42 (bpftune) on /sys/fs/cgroup"
	Advice string `json:"advice"` // what to do about it, if anything
}

// ReloadResult is what a reload changed.
type ReloadResult struct {
	Config   string   `json:"config"`
	Mode     string   `json:"mode"`
	Rules    int      `json:"rules"`
	Added    []string `json:"added"`
	Removed  []string `json:"removed"`
	Changed  []string `json:"changed"`
	Warnings []string `json:"warnings,omitempty"` // changes that need a restart
}

// PodList is the pods of this host.
type PodList struct {
	At      time.Time    `json:"at"`
	Pods    []Pod        `json:"pods"`
	Refused []RefusedPod `json:"refused"` // records that are not used
	// Packets are the packets of pods by what became of them since host routing was switched on; absent
	// unless it is (pods.host_routing).
	Packets []metrics.PacketCount `json:"packets,omitempty"`
}

// PodRouting says whether the packets of a pod are routed without the host's stack.
type PodRouting struct {
	Active bool   `json:"active"`
	Why    string `json:"why,omitempty"` // why not
}

// Status is the part of the status; nil if there is nothing to say of pods. failed is why the records
// could not be read; empty if they could.
func (l *PodList) Status(failed string) *PodStatus {
	if len(l.Pods) == 0 && len(l.Refused) == 0 && failed == "" {
		return nil
	}
	s := &PodStatus{Count: len(l.Pods), Refused: len(l.Refused)}
	if failed != "" {
		s.Warnings = append(s.Warnings, failed)
	}
	for i := range l.Pods {
		if p := &l.Pods[i]; p.Warning != "" {
			s.Warnings = append(s.Warnings, "pod "+p.Pod+": "+p.Warning)
		}
	}
	return s
}

// Pod is a pod, by its network namespace.
type Pod struct {
	Pod         string            `json:"pod"`       // namespace/name
	Namespace   string            `json:"namespace"` // empty if the container is not of Kubernetes
	Name        string            `json:"name"`
	NetNS       uint64            `json:"netns"` // cookie
	Container   string            `json:"container_id"`
	Cgroup      string            `json:"cgroup,omitempty"`
	Recorded    bool              `json:"recorded"`              // by tcpilot-cni, at its start; if not, it was found by its processes
	Annotations map[string]string `json:"annotations,omitempty"` // those of tcpilot.io, and those that rules name
	Rules       []string          `json:"rules"`                 // rules for pods that match it, in the order of matching
	Control     string            `json:"cc,omitempty"`          // congestion control that its annotation fixes
	Warning     string            `json:"warning,omitempty"`     // which annotations are not followed, and why
	Since       time.Time         `json:"since"`                 // when the container runtime added it
	// Connections is the number of those that have ended since the daemon read the pod's record, without
	// those that rules leave alone.
	Connections uint64 `json:"connections"`
	// Routing is absent unless host routing is configured (pods.host_routing).
	Routing *PodRouting `json:"host_routing,omitempty"`
	// Egress and Ingress limit the bandwidth of the pod; absent without a limit.
	Egress  *PodBandwidth `json:"egress_bandwidth,omitempty"`
	Ingress *PodBandwidth `json:"ingress_bandwidth,omitempty"`
	// BigTCP is absent unless BIG TCP is configured (pods.big_tcp).
	BigTCP *PodBigTCP `json:"big_tcp,omitempty"`
}

// PodBigTCP says whether a pod can have packets above 64 KB, before segmentation, and how many it had.
type PodBigTCP struct {
	Active   bool   `json:"active"`
	Why      string `json:"why,omitempty"`        // why not
	Size     uint32 `json:"size_bytes,omitempty"` // largest packet
	Sent     uint64 `json:"sent_packets"`         // above 64 KB, of connections of any age
	Received uint64 `json:"received_packets"`
}

// PodBandwidth is the limit of a pod's bandwidth in one direction, and what it was applied to since it
// came into force: bytes on the wire, and packets after segmentation.
type PodBandwidth struct {
	Limit   uint64 `json:"limit_rate_bytes_per_second"`
	Passed  uint64 `json:"passed_bytes"`
	Marked  uint64 `json:"marked_packets"` // passed with a mark of congestion (ECN)
	Dropped uint64 `json:"dropped_packets"`
}

// RefusedPod is a record that is not used.
type RefusedPod struct {
	Record  string `json:"record"` // file
	Pod     string `json:"pod,omitempty"`
	Why     string `json:"why"`
	Removed bool   `json:"removed"` // the file was removed, because the pod is gone
}

// PodSync is the result of reading the records of pods. The rules for the pods are in force.
type PodSync struct {
	Pods    int          `json:"pods"`
	Refused []RefusedPod `json:"refused"` // by this reading
}

// LoadRequest asks for a user's own sock_ops object to be attached.
type LoadRequest struct {
	Name   string `json:"name"`   // empty: the file's base name
	File   string `json:"file"`   // absolute path of an ELF file, read by the daemon
	Cgroup string `json:"cgroup"` // absolute path of a cgroup v2 directory
}

// ProgramList is the users' own programs.
type ProgramList struct {
	At       time.Time `json:"at"`
	Programs []Loaded  `json:"programs"`
}

// Loaded is a user's own program.
type Loaded struct {
	Name     string    `json:"name"`
	File     string    `json:"file"`
	Cgroup   string    `json:"cgroup"`
	Programs []Program `json:"programs"`
	Since    time.Time `json:"since"`
}

// ControlList is tcpilot's own congestion controls in BPF, and those of users, by name.
type ControlList struct {
	At       time.Time           `json:"at"`
	Controls []CongestionControl `json:"congestion_controls"`
}

// CongestionControl is one of tcpilot's own in BPF, or a user's.
type CongestionControl struct {
	Name        string                 `json:"name"`
	State       string                 `json:"state"`         // available, loaded, absent, elsewhere: by another process
	Why         string                 `json:"why,omitempty"` // why it is absent, or elsewhere
	Source      string                 `json:"source"`        // specification it implements; for a user's own, the file
	User        bool                   `json:"user"`          // a user's own
	Wanted      bool                   `json:"wanted"`        // the configuration asks for it
	Rules       []string               `json:"rules"`         // that name it
	NeedsECN    bool                   `json:"needs_ecn"`     // an arm only where ECN has proved to work
	Auto        bool                   `json:"auto"`          // arms: auto includes it, once it is loaded
	Version     string                 `json:"version"`       // of the object
	Outdated    bool                   `json:"outdated"`      // the daemon has another version than the kernel
	Connections int                    `json:"connections"`   // sockets that use it now
	Programs    []metrics.ProgramStats `json:"programs"`      // in the kernel
}

// LoadControlRequest asks for a congestion control to be loaded.
type LoadControlRequest struct {
	Name string `json:"name"`
	// File is the absolute path of a user's object; empty for one of tcpilot's own.
	File string `json:"file,omitempty"`
	Auto bool   `json:"auto"` // arms: auto includes it, not only rules that name it
}

// Unloaded is the result of unloading a congestion control.
type Unloaded struct {
	Connections int `json:"connections"` // connections that keep it until they end
}

// Program is one BPF program of a user's object.
type Program struct {
	metrics.ProgramStats
	Type string `json:"type"`
}
