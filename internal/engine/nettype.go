package engine

import (
	"fmt"
	"net/netip"

	"github.com/tcpilot/tcpilot/internal/estimate"
)

// leastSiblings is the number of paths with a known type from which one that is not known yet
// takes theirs.
const leastSiblings = 2

// NetworkType is the type of network of one path.
type NetworkType struct {
	Type string `json:"type"` // as in PathMetrics
	Why  string `json:"why"`
	// AssumedFrom is the enclosing prefix that the type was taken from, because too little is
	// known of the path itself.
	AssumedFrom string `json:"assumed_from,omitempty"`
}

// NetworkTypes lists the names of all types.
func NetworkTypes() (names []string) {
	for _, t := range estimate.NetworkTypes() {
		names = append(names, t.String())
	}
	return names
}

// networkType returns the type of network of an address in a class: that of its path or, if too
// little is known of it, that of the other paths in the enclosing prefix, if these agree.
func (e *Engine) networkType(rs *ruleState, scope uint64, addr netip.Addr) *NetworkType {
	parent := e.nodes[rootKey(rs.class, scope)]
	n := e.node(rs, scope, addr, false)
	if n != nil && n.hosts {
		parent, n = n, e.host(n, addr)
	}
	out := &NetworkType{Type: estimate.UnknownNetwork.String(), Why: "nothing is known of the path yet: no connection of it was scored"}
	if n != nil {
		is, why := n.metrics.Network.Type, n.metrics.WhyNetwork()
		out.Type, out.Why = is.String(), why.String()
		if is != estimate.UnknownNetwork || why.Judged() {
			return out
		}
	}
	if t, known := e.agreedType(parent, n); t != estimate.UnknownNetwork {
		out.Type, out.AssumedFrom = t.String(), parent.key.path().Prefix.String()
		out.Why = fmt.Sprintf("%d other paths in it have this type and none has another; %s", known, out.Why)
	}
	return out
}

// agreedType returns the type that all paths of a parent with a known type have, and their
// number. except is not counted.
func (e *Engine) agreedType(parent, except *node) (t estimate.NetworkType, known int) {
	differ := false
	e.cache.byUse.each(func(n *node) {
		is := n.metrics.Network.Type
		if n.parent != parent || parent == nil || n == except || is == estimate.UnknownNetwork {
			return
		}
		differ = differ || known > 0 && is != t
		t = is
		known++
	})
	if differ || known < leastSiblings {
		return estimate.UnknownNetwork, known
	}
	return t, known
}
