package metrics

import (
	"cmp"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
)

// Counters is what the datapath counted since its maps were made. Counts only grow while the
// daemon runs, except numbers of what there is now: connections under limits and those that use a
// congestion control, raised limits, pods.
type Counters struct {
	Connections []ClassCount   `json:"connections"`  // connections classified
	Decisions   []ReasonCount  `json:"decisions"`    // what was done with them
	Samples     SampleCount    `json:"samples"`      // samples on their way from the kernel
	SetErrors   []FieldCount   `json:"set_errors"`   // options that the kernel refused
	ArmFailures []ArmCount     `json:"arm_failures"` // congestion controls that it refused
	Events      []EventCount   `json:"events"`       // of watched connections
	Programs    []ProgramStats `json:"programs"`
	Controls    map[string]int `json:"controls"` // sockets that use each loaded congestion control in BPF, by its name
	Unseen      UnseenCount    `json:"unseen"`
	// Limits are the rate limits of rules that are in force.
	Limits  []LimitCount  `json:"limits,omitempty"`
	Buffers []BufferCount `json:"buffers,omitempty"` // raised limits; absent unless buffers.adapt is on
	Pods    []PodCount    `json:"pods,omitempty"`    // present pods
	Packets []PacketCount `json:"packets,omitempty"` // of pods; absent unless pods.host_routing is on
	// Bandwidth is what the limits of all pods did, by direction; absent if there never was a limit.
	Bandwidth []BandwidthCount `json:"bandwidth,omitempty"`
	PodLimits []PodLimitCount  `json:"pod_limits,omitempty"` // of present pods
	Peer      PeerCount        `json:"peer"`
	BigTCP    *BigTCPCount     `json:"big_tcp,omitempty"` // absent unless pods.big_tcp is on
	Host      *HostCount       `json:"host,omitempty"`    // absent unless the host profile names something
}

// PacketCount counts the packets of pods that had one fate. A packet of several segments (GSO) is one.
type PacketCount struct {
	Fate    string `json:"fate"`   // the way on which it was routed, or why the host's stack got it
	Routed  bool   `json:"routed"` // without the host's stack
	Packets uint64 `json:"packets"`
}

// PodCount counts the connections of a pod.
type PodCount struct {
	Pod         string `json:"pod"`         // namespace/name
	Connections uint64 `json:"connections"` // those that have ended since the daemon read the record of the pod
}

// BandwidthCount is what the limits of bandwidth of all pods did in one direction, those of pods that are gone
// included.
type BandwidthCount struct {
	Direction string `json:"direction"` // egress, ingress: as the pod sees it
	Limited   int    `json:"limited"`   // present pods that have a limit
	Passed    uint64 `json:"passed_bytes"`
	Marked    uint64 `json:"marked_packets"`
	Dropped   uint64 `json:"dropped_packets"`
}

// PodLimitCount is what the limit of one pod did in one direction since it came into force.
type PodLimitCount struct {
	Pod       string `json:"pod"`       // namespace/name
	Direction string `json:"direction"` // egress, ingress: as the pod sees it
	Limit     uint64 `json:"limit_rate_bytes_per_second"`
	Passed    uint64 `json:"passed_bytes"`
	Marked    uint64 `json:"marked_packets"`
	Dropped   uint64 `json:"dropped_packets"`
}

// BigTCPCount counts packets of pods above 64 KB, before segmentation, those of pods that are gone included.
type BigTCPCount struct {
	Pods     int    `json:"pods"` // present ones that can have some
	Sent     uint64 `json:"sent_packets"`
	Received uint64 `json:"received_packets"`
}

// HostCount counts what the host profile has changed now, in all network namespaces.
type HostCount struct {
	Sysctls    int `json:"sysctls"`
	Routes     int `json:"routes"`
	RoutesLeft int `json:"routes_left"` // within the prefixes, but left as they are
}

// LimitCount is what a rule's rate limit does now.
type LimitCount struct {
	Rule        string  `json:"rule"`
	Total       uint64  `json:"total_rate_bytes_per_second,omitempty"`      // of all connections together
	Connection  uint64  `json:"connection_rate_bytes_per_second,omitempty"` // of each
	Connections int     `json:"connections"`                                // that are under it
	Active      int     `json:"active"`                                     // of them, those that send now
	Share       uint64  `json:"share_rate_bytes_per_second,omitempty"`      // most that a connection gets now; absent: as much as it needs
	Measured    float64 `json:"measured_rate_bytes_per_second"`             // what they send together, retransmissions included
	Sent        uint64  `json:"sent_bytes"`                                 // since the limit came into force
}

// BufferCount counts network namespaces and raises of one limit of buffers.
type BufferCount struct {
	Sysctl    string `json:"sysctl"`
	Raised    int    `json:"raised"`     // namespaces in which it is raised now
	Raises    uint64 `json:"raises"`     // since the start
	TakenBack uint64 `json:"taken_back"` // raises that were taken back because TCP was short of memory
}

// ClassCount counts the connections of one class.
type ClassCount struct {
	Class    uint32 `json:"class"` // 0 is no class
	Rule     string `json:"rule"`  // see NameRules
	Outgoing uint64 `json:"outgoing"`
	Incoming uint64 `json:"incoming"`
}

// ReasonCount counts connections by what they got. One that got a policy also counts under
// what was done with its congestion control.
type ReasonCount struct {
	Reason string `json:"reason"` // from a closed list: policy, hold-out, no-policy, lease-expired, cc-set...
	Count  uint64 `json:"count"`
}

// SampleCount counts samples on their way from the kernel.
type SampleCount struct {
	Submitted uint64 `json:"submitted"` // put into the ring buffer
	Dropped   uint64 `json:"dropped"`   // the ring buffer was full
	Received  uint64 `json:"received"`  // read from it
	Malformed uint64 `json:"malformed"` // read, but not a sample of this version
}

// Lost is the number of samples that the engine never saw.
func (c SampleCount) Lost() uint64 { return c.Dropped + c.Malformed }

// FieldCount counts refused bpf_setsockopt calls for one field.
type FieldCount struct {
	Field string `json:"field"` // a tcp.Field's name
	Count uint64 `json:"count"`
}

// ArmCount counts refused settings of one congestion control.
type ArmCount struct {
	CC    string `json:"cc"`
	Count uint64 `json:"count"`
}

// EventCount counts one kind of event of the watched connections of a class.
type EventCount struct {
	Class uint32 `json:"class"`
	Rule  string `json:"rule"`
	Event string `json:"event"` // rto, retransmit, state
	Count uint64 `json:"count"`
}

// ProgramStats says what one BPF program has cost. The kernel counts runs only
// while kernel.bpf_stats_enabled (or BPF_ENABLE_STATS) is on.
type ProgramStats struct {
	Name     string        `json:"name"`
	ID       uint32        `json:"id"`
	Stats    bool          `json:"stats"` // RunCount and RunTime are being counted
	RunCount uint64        `json:"run_count"`
	RunTime  time.Duration `json:"run_time_ns"`
}

// UnseenCount counts connections without a sample of their end.
type UnseenCount struct {
	Untracked uint64 `json:"untracked"` // there was no room to remember them
	Forgotten uint64 `json:"forgotten"` // their socket began another connection
	Missed    uint64 `json:"missed"`    // the kernel did not show the end: an upper bound
	Thinned   uint64 `json:"thinned"`   // there were many: the samples of others stand for them
	Backwards uint64 `json:"backwards"` // the kernel had reset their counters (tcp_disconnect)
}

// PeerCount counts what happened with the peer option.
type PeerCount struct {
	Sent    uint64 `json:"sent_packets"` // SYNs and SYN-ACKs with it
	Seen    uint64 `json:"seen_packets"` // those that arrived and were read
	Resent  uint64 `json:"resent"`       // connections whose SYN was sent again without it
	Omitted uint64 `json:"omitted"`      // connections that began without it, because their host had answered a SYN only without it
}

// Names that stand for a class that has no rule.
const (
	noRule      = "none"    // class 0: no rule matched
	removedRule = "removed" // the class of a rule that a reload took away
)

// NameRules fills in the rule of every class that has none yet. The classes of removed rules are
// summed under one name, so that reloads do not add labels without end.
func (c *Counters) NameRules(rules []engine.RuleState) {
	names := make(map[uint32]string, len(rules)+1)
	names[0] = noRule
	for _, r := range rules {
		names[r.Class] = r.Name
	}
	name := func(class uint32, rule string) (uint32, string) {
		if rule != "" {
			return class, rule
		}
		if n, ok := names[class]; ok {
			return class, n
		}
		return 0, removedRule
	}
	c.Connections = slices.Clone(c.Connections)
	conns := c.Connections[:0]
	for _, n := range c.Connections {
		n.Class, n.Rule = name(n.Class, n.Rule)
		i := slices.IndexFunc(conns, func(o ClassCount) bool { return o.Rule == n.Rule })
		if i < 0 {
			conns = append(conns, n)
			continue
		}
		conns[i].Outgoing += n.Outgoing
		conns[i].Incoming += n.Incoming
	}
	c.Connections = conns

	c.Events = slices.Clone(c.Events)
	events := c.Events[:0]
	for _, n := range c.Events {
		n.Class, n.Rule = name(n.Class, n.Rule)
		i := slices.IndexFunc(events, func(o EventCount) bool { return o.Rule == n.Rule && o.Event == n.Event })
		if i < 0 {
			events = append(events, n)
			continue
		}
		events[i].Count += n.Count
	}
	c.Events = events
}

// Sort puts what is counted by name into a stable order, most first.
func (c *Counters) Sort() {
	most := func(a, b uint64, x, y string) int { return cmp.Or(cmp.Compare(b, a), cmp.Compare(x, y)) }
	c.Decisions = slices.SortedFunc(slices.Values(c.Decisions), func(a, b ReasonCount) int {
		return most(a.Count, b.Count, a.Reason, b.Reason)
	})
	c.SetErrors = slices.SortedFunc(slices.Values(c.SetErrors), func(a, b FieldCount) int {
		return most(a.Count, b.Count, a.Field, b.Field)
	})
	c.ArmFailures = slices.SortedFunc(slices.Values(c.ArmFailures), func(a, b ArmCount) int {
		return most(a.Count, b.Count, a.CC, b.CC)
	})
	c.Pods = slices.SortedFunc(slices.Values(c.Pods), func(a, b PodCount) int {
		return most(a.Connections, b.Connections, a.Pod, b.Pod)
	})
	c.Events = slices.SortedStableFunc(slices.Values(c.Events), func(a, b EventCount) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Event, b.Event))
	})
}
