package engine

import (
	"slices"
	"time"
)

const (
	// pace is the least time between two decisions about one path, so that a busy path is
	// not decided on after each of its connections.
	pace = int64(50 * time.Millisecond)
	// settledAt is the number of observations, since a path was first seen or changed,
	// from which the decision after another outcome of the best arm goes to queue.later,
	// unless the sum of the change detector is urgentSum or more (a quarter of its limit,
	// see learn).
	settledAt = 16
	urgentSum = 1.5
	// laterRate is how many decisions a second are made about the paths in queue.later: at
	// 2.5 us each, about a thousandth of a core. At lower rates they do not wait.
	laterRate = 500
)

// queue is the nodes that are to be decided on.
type queue struct {
	dirty []*node // at the next tick
	later []*node // at a limited rate (laterRate), in this order
	stamp uint32  // incremented when something changed that all decisions depend on
	// allowance is how many of later may be decided on, as of allowed (Unix ns): a token
	// bucket.
	allowance float64
	allowed   int64
	// deferred are nodes that wait for their slice to end, by the length of the slice.
	// releasedAt (Unix ns) is when release last ran.
	deferred   [longestSlice + fixedShift - leastSlice + 1][]*node
	releasedAt int64

	deciding []*node // not yet decided on in this round
	spare    []*node // memory of the last round, to be used again
}

// mark asks for a decision about n at the next tick.
func (q *queue) mark(n *node) {
	if !n.dirty && !n.gone {
		n.dirty = true
		q.dirty = append(q.dirty, n)
	}
}

// markUrgent asks for a decision at the next tick, even in the middle of a slice.
func (q *queue) markUrgent(n *node) {
	n.stamp = q.stamp - 1
	q.mark(n)
}

// enqueue asks for a decision at the limited rate of later, unless n is marked already.
func (q *queue) enqueue(n *node) {
	if !n.dirty && !n.queued && !n.gone {
		n.queued = true
		if !n.listed {
			n.listed = true
			q.later = append(q.later, n)
		}
	}
}

// deferNode defers the decision about n until its slice ends. If lowPriority is set, n goes
// to later then.
func (q *queue) deferNode(n *node, lowPriority bool) {
	if n.deferred {
		n.lowPriority = n.lowPriority && lowPriority
		return
	}
	n.deferred, n.lowPriority = true, lowPriority
	list := &q.deferred[n.policy.slice-leastSlice]
	*list = append(*list, n)
}

// release marks the deferred nodes whose slice has ended, or all of them.
func (q *queue) release(now int64, all bool) {
	for i := range q.deferred {
		if shift := leastSlice + i; len(q.deferred[i]) == 0 || !all && now>>shift == q.releasedAt>>shift {
			continue
		}
		for _, n := range q.deferred[i] {
			if !n.deferred {
				continue
			}
			n.deferred = false
			if n.lowPriority {
				q.enqueue(n)
			} else {
				q.mark(n)
			}
		}
		clear(q.deferred[i])
		q.deferred[i] = q.deferred[i][:0]
	}
	q.releasedAt = now
}

// empty reports whether no decision is due: those that are deferred are not.
func (q *queue) empty() bool { return len(q.dirty)+len(q.later) == 0 }

// begin takes the nodes to decide on now, and returns them. During the round, nodes that have to
// wait, or whose write failed, are marked for the next one.
func (q *queue) begin(now int64) (round []*node) {
	q.deciding, q.dirty, q.spare = q.dirty, q.spare[:0], nil
	q.allowance = min(laterRate, q.allowance+laterRate*max(0, float64(now-q.allowed)*1e-9))
	q.allowed = now
	return q.deciding
}

// next returns the node to decide on next: of the round or, after these, of later as long as the
// allowance lasts; nil if there is none. Nodes that have to wait are passed over, unless all is set.
func (q *queue) next(now int64, all bool) *node {
	for len(q.deciding) > 0 {
		n := q.deciding[0]
		q.deciding = q.deciding[1:]
		n.dirty = false
		switch {
		case n.gone:
		case !all && q.inSlice(n, now):
			q.deferNode(n, false)
		case !all && q.tooSoon(n, now):
			q.mark(n)
		default:
			n.queued, n.deferred = false, false
			return n
		}
	}
	for len(q.later) > 0 && (all || q.allowance >= 1) {
		n := q.later[0]
		q.later = q.later[1:]
		n.listed = false
		switch {
		case !n.queued || n.gone:
		case !all && q.inSlice(n, now):
			n.queued = false
			q.deferNode(n, true)
		default:
			n.queued, n.deferred = false, false
			q.allowance = max(0, q.allowance-1)
			return n
		}
	}
	if len(q.later) == 0 {
		q.later = nil
	}
	return nil
}

// end marks again the nodes of a round that were not decided on because a write failed.
func (q *queue) end(round []*node) {
	for _, n := range q.deciding {
		n.dirty = false
		q.mark(n)
	}
	clear(round)
	q.deciding, q.spare = nil, round[:0]
}

// tooSoon reports whether n was decided on less than pace ago, and only outcomes have come
// since. A change of the path, or of something that all paths depend on, never waits.
func (q *queue) tooSoon(n *node, now int64) bool {
	since := now - n.decided
	return q.settled(n) && since >= 0 && since < pace
}

// inSlice reports whether n was decided on in the current slice, and only outcomes have come
// since. Then the decision is deferred: other shares could change the arm in mid-slice.
func (q *queue) inSlice(n *node, now int64) bool {
	slice := n.policy.slice
	return slice > 0 && now>>slice == n.decided>>slice && q.settled(n)
}

// settled reports whether only outcomes have come since n was decided on.
func (q *queue) settled(n *node) bool {
	return n.expires != 0 && n.stamp == q.stamp && n.changes == n.belief.Changes
}

// dropGone removes dropped nodes.
func (q *queue) dropGone() {
	q.dirty, q.later = slices.DeleteFunc(q.dirty, (*node).isGone), slices.DeleteFunc(q.later, (*node).isGone)
	for i := range q.deferred {
		q.deferred[i] = slices.DeleteFunc(q.deferred[i], (*node).isGone)
	}
}
