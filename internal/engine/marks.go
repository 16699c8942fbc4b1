package engine

import (
	"fmt"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// marks-lost: an arm that needs ECN answers marks, and is a bad Reno without them. A
// path that has once proved to make them may stop: its route moves to a queue that
// drops instead, or the host at its end negotiates ECN no more.

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
	a := n.guardAt(s.At).arm(s.Arm)
	a.unmarked++
	a.without++
	if a.unmarked >= unmarkedMost {
		e.ban(n, a.cc, MarksLost, a.whyUnmarked(), s.At)
	}
}

// meet counts connections that lose packets without a mark.
func (a *armSeen) meet(s *tcp.Sample) {
	switch {
	case s.DeliveredCE > 0:
		a.unmarked, a.without = 0, 0
	case s.Kind == tcp.KindClose && (s.Lost > 0 || s.Retrans > 0):
		a.unmarked++
	}
}

func (a *armSeen) whyUnmarked() string {
	switch a.without {
	case 0:
		return fmt.Sprintf("%d connections in a row lost packets and met no mark", a.unmarked)
	case a.unmarked:
		return fmt.Sprintf("%d connections in a row were made without ECN, which it needs", a.unmarked)
	}
	return fmt.Sprintf("%d connections in a row met no mark: %d were made without ECN, the others lost packets", a.unmarked, a.without)
}
