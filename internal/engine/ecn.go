package engine

import (
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Anybody who answers a connection can forge a mark. So several connections must have met
// some before a path counts as one that marks, and arms that do without anything else are
// only for paths inside a data centre, as DCTCP itself is (RFC 8257, 1): of private
// addresses, or of a rule that says so, by same_prefix or by naming such an arm.

// provenMarks is the number of connections that must have met marks.
const provenMarks = 4

// inside reports whether a path is inside a data centre.
func (n *node) inside() bool {
	r := n.rule.rule
	if r.Match.Same != (policy.Same{}) || r.Learn != nil && r.Learn.Arms != nil {
		return true
	}
	a := n.key.path().Prefix.Addr().Unmap()
	return a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsLoopback()
}

// notDrawn are connections whose congestion control is not the arm's doing.
const notDrawn = tcp.FlagHoldOut | tcp.FlagAppCC | tcp.FlagArmFailed | tcp.FlagAdopted

// watchECN counts connections of an arm that needs ECN which were made without. Such
// an arm hands its socket over to Reno then (ours do, and the kernel's dctcp, see
// fall_back in bpf/cc/scalable.bpf.h): the sample is not scored, so that no learner and
// no other guard sees it, and the path would pass for one with ECN for ever. It counts
// for the path whose policy gave the arm, which may enclose the host's own.
func (e *Engine) watchECN(leaf *node, s *tcp.Sample) {
	if !s.Has(tcp.FlagCCChanged) || s.Kind != tcp.KindClose || s.Flags&(tcp.FlagECN|notDrawn) != 0 {
		return
	}
	n := leaf.policyNode()
	if !n.ecn || !e.offered.needsECN(s.Arm) || n.bans.Until(s.Arm) > s.At {
		return
	}
	e.judge(n, n.guardAt(s.At).AddWithoutECN(s), s.At)
}
