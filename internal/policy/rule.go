package policy

import (
	"net/netip"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Rule says what to do with the connections that it matches. The first rule
// that matches a connection is the only one that counts.
type Rule struct {
	Name    string
	Builtin bool // from tcpilot, not from the operator's configuration
	// Of names the rule that this one is a variant of (WithPodControls); empty for all others.
	Of    string
	Match Match
	Leave bool       // touch nothing, report nothing
	Set   tcp.Params // fixed values
	CC    tcp.CC     // fixed congestion control; zero is none
	Learn *Learn     // nil is nothing to learn
	// Adapt lists the fields, of Adaptive, whose values are computed from the metrics of each
	// path. Only with Learn, without which paths have no metrics.
	Adapt []tcp.Field
	// Bounds are the greatest windows and the least timeouts that Adapt computes. A field that
	// is not set has its default bound.
	Bounds tcp.Params
	// ByObjective has the bit 1<<f for each field f of Set and Bounds that has its value from the
	// objective: the operator has not named it. See UseObjective.
	ByObjective uint64
	Watch       Watch
	OnRTO       OnRTO
	// Limit bounds the rate of all connections of the rule, those of the hold-out included.
	Limit RateLimit
	// Rollout is the share of connections that the rule applies to, above 0 to 1; the
	// others are in the hold-out. 0 means all connections.
	Rollout float64
}

// RolloutShare is the rule's rollout as a share.
func (r *Rule) RolloutShare() float64 {
	if r.Rollout == 0 {
		return 1
	}
	return r.Rollout
}

// Match lists conditions, all of which have to hold. An empty list, and the
// zero value of each field, holds for every connection.
type Match struct {
	Remote, Local         []netip.Prefix // any of these; masked, never v4-mapped
	RemotePort, LocalPort []PortRange    // any of these
	Cgroup                []string       // at or below any of these paths, or of what these patterns match
	NetNS                 []string       // any of these: name, path, or cookie
	Pod                   *pod.Match     // of one of these pods; nil: of any pod or of none
	Direction             Direction
	Same                  Same
}

// PortRange is a run of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// Direction says who opened a connection.
type Direction uint8

const (
	Either   Direction = iota
	Outgoing           // this host called connect
	Incoming           // this host accepted
)

// String returns the direction's key in the configuration.
func (d Direction) String() string {
	return [...]string{"either", "outgoing", "incoming"}[d]
}

// Same requires that local and remote address have the same first bits, by address family.
// If only one family has 0 bits, that family does not match; if both have, nothing is
// required.
type Same struct{ IPv4, IPv6 int }

// Learn says what is learned for the connections of a rule.
type Learn struct {
	Arms          []tcp.CC // what to choose from; nil is auto: what is offered, except Input.ByName
	Objective     learn.Objective
	HoldOut       float64 // share left at kernel defaults, 0 to 1
	SwitchRunning bool    // running connections are switched to a much better arm
	OwnScope      bool    // each network namespace learns for itself
}

// OnRTO gives another congestion control to running connections whose retransmission timer has expired
// After times. The zero OnRTO does nothing.
type OnRTO struct {
	CC    tcp.CC
	After int     // 1 or more
	Share float64 // of connections, 0 to 1
}

// Watch counts events of a share of connections.
type Watch struct {
	Events uint8   // class.Watch* bits; 0 is nothing
	Share  float64 // 0 to 1
}

// Action is what the rule does, in one word for tables: leave, set, learn,
// set+learn, limit, on_rto, watch, or none.
func (r *Rule) Action() string {
	set := r.Set.Mask()&^r.ByObjective != 0 || r.CC != (tcp.CC{})
	switch {
	case r.Leave:
		return "leave"
	case set && r.Learn != nil:
		return "set+learn"
	case set:
		return "set"
	case r.Learn != nil:
		return "learn"
	case r.Limit != (RateLimit{}):
		return "limit"
	case r.OnRTO != (OnRTO{}):
		return "on_rto"
	case r.Watch.Events != 0:
		return "watch"
	}
	return "none"
}
