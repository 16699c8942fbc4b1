package engine

import (
	"slices"
	"testing"
)

// decided takes the nodes of one round, and notes that they were decided on.
func decided(q *queue, now int64, all bool) (nodes []*node) {
	round := q.begin(now)
	for n := q.next(now, all); n != nil; n = q.next(now, all) {
		n.decided, n.stamp, n.expires = now, q.stamp, now+1
		nodes = append(nodes, n)
	}
	q.end(round)
	return nodes
}

func TestQueue(t *testing.T) {
	var q queue
	a, b, c := &node{}, &node{}, &node{}
	expect := func(when string, now int64, all bool, want ...*node) {
		t.Helper()
		if got := decided(&q, now, all); !slices.Equal(got, want) {
			t.Errorf("%s: %d nodes, want %d", when, len(got), len(want))
		}
	}
	now := start
	q.mark(a)
	q.mark(b)
	q.mark(a)
	expect("each once, in order", now, false, a, b)
	q.mark(a)
	expect("too soon", now+pace-1, false)
	expect("later", now+pace, false, a)

	// In the middle of a slice a decision waits, unless it is urgent.
	now += second
	a.policy.slice, a.decided = firstSlice, now
	inSlice := now>>firstSlice<<firstSlice + 1<<(firstSlice-1)
	a.decided = inSlice - pace
	q.mark(a)
	expect("in its slice", inSlice, false)
	if !q.empty() || !a.deferred {
		t.Error("it is not deferred")
	}
	q.release(inSlice+1, false)
	expect("still in its slice", inSlice+1, false)
	q.markUrgent(a)
	expect("urgent", inSlice+2, false, a)
	q.release(now+2<<firstSlice, false)
	if !q.empty() {
		t.Error("it was decided on, and is decided on again")
	}

	// Nodes that are not urgent are decided on at a limited rate, after the others.
	now += 3600 * second
	var many []*node
	for range laterRate + 10 {
		n := &node{}
		many = append(many, n)
		q.enqueue(n)
	}
	q.mark(c)
	expect("as many as the rate allows", now, false, append([]*node{c}, many[:laterRate]...)...)
	expect("no more at once", now, false)
	expect("five hundredths of a second", now+second/100, false, many[laterRate:laterRate+5]...)
	many[laterRate+6].gone = true
	q.dropGone()
	expect("all, but what was dropped", now, true, many[laterRate+5], many[laterRate+7], many[laterRate+8], many[laterRate+9])

	// What a round did not come to is marked for the next one.
	q.mark(b)
	q.mark(c)
	round := q.begin(now)
	q.next(now, true)
	q.end(round)
	expect("the rest", now, true, c)
}

// Nodes that are decided on between two of their turns in later are in it once: it does not grow, even if there is always more to
// decide on than its rate allows.
func TestLaterIsBounded(t *testing.T) {
	var q queue
	busy, others := make([]*node, 20), make([]*node, 2*laterRate)
	for i := range busy {
		busy[i] = &node{}
	}
	for i := range others {
		others[i] = &node{}
	}
	now, got := start, map[*node]int{}
	for range 300 {
		now += second / 10
		for _, n := range slices.Concat(busy, others) {
			q.enqueue(n)
		}
		for _, n := range busy {
			q.mark(n)
		}
		for _, n := range decided(&q, now, false) {
			got[n]++
		}
	}
	if len(q.later) > len(busy)+len(others) {
		t.Errorf("later has %d entries of %d nodes", len(q.later), len(busy)+len(others))
	}
	for _, n := range others {
		if got[n] < 8 { // 15,000 decisions in 30 s
			t.Fatalf("a node was decided on %d times", got[n])
		}
	}
}
