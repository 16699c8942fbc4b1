package engine

import (
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Any peer can forge CE marks. So several connections must have got marks before a path
// counts as one that marks. Arms that need ECN marks are only for paths inside a data
// centre, as DCTCP is (RFC 8257, 1): paths with private addresses, or of a rule that says so
// by same_prefix or by naming its arms.

// provenMarks is the number of connections that must have got marks.
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

// notDrawn are the flags of connections that do not use a drawn arm.
const notDrawn = tcp.FlagHoldOut | tcp.FlagAppCC | tcp.FlagArmFailed | tcp.FlagAdopted

// countWithoutECN counts connections without ECN that had an arm which needs it. Such an arm falls
// back to Reno (ours do, and the kernel's dctcp; see fall_back in bpf/cc/scalable.bpf.h), so
// the sample is not scored, and neither the learner nor the other guards see it. Without
// this count the path would count as one with ECN for ever. The connection counts for the
// node whose policy gave the arm, which may be an ancestor of the host's node.
func (e *Engine) countWithoutECN(leaf *node, s *tcp.Sample) {
	if !s.Has(tcp.FlagCCChanged) || s.Kind != tcp.KindClose || s.Flags&(tcp.FlagECN|notDrawn) != 0 {
		return
	}
	n := leaf.policyNode()
	if !n.ecn || !e.arms.offered.needsECN(s.Arm) || n.retired.Retires(s.Arm, s.At) {
		return
	}
	e.judge(n, n.guardAt(s.At).AddWithoutECN(s), s.At)
}
