package engine

import (
	"fmt"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// marks-lost: an arm that needs ECN answers marks, and is a bad Reno without them. A
// path that has once proved to make them may stop: its route moves to a queue that
// drops instead, or the host at its end negotiates ECN no more.

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
// fall_back in bpf/scalable.bpf.h): the sample is not scored, so that no learner and
// no other guard sees it, and the path would pass for one with ECN for ever. It counts
// for the path whose policy gave the arm, which may enclose the host's own.
func (e *Engine) watchECN(leaf *node, s *tcp.Sample) {
	if !s.Has(tcp.FlagCCChanged) || s.Kind != tcp.KindClose || s.Flags&(tcp.FlagECN|notDrawn) != 0 {
		return
	}
	n := leaf.giver()
	if !n.ecn || !e.offered.needsECN(s.Arm) || n.bannedUntil(s.Arm) > s.At {
		return
	}
	u := &n.guardAt(s.At).arm(s.Arm).unmarked
	u.add(s)
	u.without++
	if u.tooMany() {
		e.ban(n, s.Arm, MarksLost, u.why(), s.At)
	}
}

// unmarked are the latest connections of an arm in a row that should have met a mark
// and did not.
type unmarked struct {
	n       int
	without int // of these, made without ECN
	// apart of them each began after the one before had ended, the latest at end (Unix
	// ns): one burst may overflow any queue.
	apart int
	end   int64
}

func (u *unmarked) add(s *tcp.Sample) {
	u.n++
	if s.At-int64(s.Duration) >= u.end {
		u.apart++
		u.end = s.At
	}
}

func (u *unmarked) tooMany() bool { return u.n >= unmarkedMost && u.apart >= unmarkedApart }

// meet counts connections that lose packets without a mark.
func (u *unmarked) meet(s *tcp.Sample) {
	switch {
	case s.DeliveredCE > 0:
		*u = unmarked{}
	case s.Kind == tcp.KindClose && (s.Lost > 0 || s.Retrans > 0):
		u.add(s)
	}
}

func (u *unmarked) why() string {
	switch u.without {
	case 0:
		return fmt.Sprintf("%d connections in a row lost packets and met no mark", u.n)
	case u.n:
		return fmt.Sprintf("%d connections in a row were made without ECN, which it needs", u.n)
	}
	return fmt.Sprintf("%d connections in a row met no mark: %d were made without ECN, the others lost packets", u.n, u.without)
}
