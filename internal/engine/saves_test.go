package engine

import (
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/policy"
)

func TestSaves(t *testing.T) {
	rs := &ruleState{rule: &policy.Rule{Name: "all"}}
	var sv saves
	var nodes []*node
	for i := range 4 {
		n := &node{rule: rs, key: keyOf(1, 0, nth(i), 24)}
		nodes = append(nodes, n)
		sv.add(n)
		sv.add(n)
	}
	expect := func(limit int, wantMore bool, want ...*node) {
		t.Helper()
		if got, _, more := sv.take(limit); !slices.Equal(got, want) || more != wantMore {
			t.Fatalf("%d nodes, more %t; want %d, %t", len(got), more, len(want), wantMore)
		}
	}
	expect(3, true, nodes[:3]...)
	expect(3, true, nodes[3], nodes[0], nodes[1]) // not confirmed: the others first
	sv.confirm()
	expect(3, false, nodes[2])
	sv.putBack() // the store is full
	nodes[2].gone = true
	sv.forget(nodes[2]) // the store does not have it
	sv.dropGone()
	expect(3, false)

	nodes[0].gone = true
	sv.forget(nodes[0])
	sv.add(nodes[0])
	sv.add(nodes[1])
	if got, forgotten, _ := sv.take(3); !slices.Equal(got, nodes[1:2]) || !slices.Equal(forgotten, []PathID{nodes[0].place()}) {
		t.Errorf("%d nodes, forgotten %v", len(got), forgotten)
	}
	nodes[1].gone = true // while it is being stored
	sv.confirm()
	if got, forgotten, _ := sv.take(3); len(got) != 0 || !slices.Equal(forgotten, []PathID{nodes[1].place()}) {
		t.Errorf("%d nodes, forgotten %v", len(got), forgotten)
	}
}
