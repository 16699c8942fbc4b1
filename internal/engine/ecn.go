package engine

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Any peer can forge CE marks. So several connections must have got marks before a path
// counts as one that marks. Arms that need ECN marks are only for paths inside a data
// centre, as DCTCP is (RFC 8257, 1): paths with private addresses, or of a rule that says so
// by same_prefix or by naming its arms.

const (
	// provenMarks is the number of connections that must have got marks.
	provenMarks = 4
	// A path counts no longer as one that marks if no connection has got a mark for unmarkedTime, among them at least
	// manyUnmarked that could have: they negotiated ECN and sent more than an initial window (RFC 6928, 10 packets; fewer hardly fill a
	// queue). A day has the busy hours of most paths.
	manyUnmarked = 256
	unmarkedTime = int64(24 * time.Hour)
	initialSegs  = 10
)

// marks is whether a path marks.
type marks struct {
	proven   bool   // provenMarks connections negotiated ECN and got CE marks
	marked   uint8  // connections that got marks, up to provenMarks
	unmarked uint16 // connections in a row that got none, up to manyUnmarked
	latest   int64  // Unix ns of the latest mark
}

// observe adds a sample, and reports whether the path counts as another one now.
func (m *marks) observe(s *tcp.Sample) bool {
	closed := s.Kind == tcp.KindClose
	switch {
	case !s.Has(tcp.FlagECN):
	case s.DeliveredCE > 0:
		m.unmarked, m.latest = 0, s.At
		if closed && !m.proven {
			m.marked++
			m.proven = m.marked >= provenMarks
			return m.proven
		}
	case closed && m.marked > 0 && s.DataSegsOut > initialSegs:
		m.unmarked = min(m.unmarked+1, manyUnmarked)
		m.latest = min(m.latest, s.At) // the clock was set back
		if m.unmarked == manyUnmarked && s.At-m.latest >= unmarkedTime {
			was := m.proven
			*m = marks{}
			return was
		}
	}
	return false
}

// storedMarks is what is kept of marks across restarts.
type storedMarks struct {
	Unmarked uint16 `json:"unmarked"`
	Latest   int64  `json:"latest_ns"` // Unix ns
}

func (m *marks) stored() *storedMarks {
	if !m.proven {
		return nil
	}
	return &storedMarks{m.unmarked, m.latest}
}

// restored is for a path that marked; s is nil in records of earlier versions, which did not have it.
func (s *storedMarks) restored(lastUsed int64) marks {
	if s == nil {
		return marks{proven: true, marked: provenMarks, latest: lastUsed}
	}
	return marks{proven: true, marked: provenMarks, unmarked: min(s.Unmarked, manyUnmarked), latest: s.Latest}
}

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
	if !n.marks.proven || !e.arms.offered.needsECN(s.Arm) || n.retired.Retires(s.Arm, s.At) {
		return
	}
	e.judge(n, n.guardAt(s.At).AddWithoutECN(s), s.At)
}
