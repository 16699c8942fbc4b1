package daemon

import (
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/host"
)

// As many namespaces as the budget allows are visited at a poll, the same number of times each,
// and each within a minute without any budget. A new one is visited at once.
func TestNamespacesAreVisitedInTurn(t *testing.T) {
	var namespaces []host.NetNS
	for i := range 100 {
		namespaces = append(namespaces, host.NetNS{Cookie: uint64(10 + 3*i)})
	}
	for name, tc := range map[string]struct{ budget, polls, each int }{
		"all":       {1000, 1, 1},
		"half":      {50, 4, 2},
		"none left": {0, lookAgain, 1},
	} {
		var s turns
		visited := map[uint64]int{}
		for range tc.polls {
			n := 0
			s.visit(namespaces, func(host.NetNS) bool { return false }, func() bool { return n < tc.budget }, func(ns host.NetNS) {
				visited[ns.Cookie]++
				n++
			})
		}
		for _, ns := range namespaces {
			if n := visited[ns.Cookie]; n < tc.each || n > tc.each+1 {
				t.Errorf("%s: %d was visited %d times in %d polls, want %d", name, ns.Cookie, n, tc.polls, tc.each)
			}
		}
	}

	var s turns
	var visited []uint64
	fresh := uint64(10 + 3*70)
	s.visit(namespaces, func(ns host.NetNS) bool { return ns.Cookie == fresh }, func() bool { return false }, func(ns host.NetNS) { visited = append(visited, ns.Cookie) })
	if want := (len(namespaces) + lookAgain - 1) / lookAgain; len(visited) != want+1 || !slices.Contains(visited, fresh) {
		t.Errorf("visited %v", visited)
	}
	s.next = 11 // the one whose turn it is has gone
	visited = nil
	s.visit(namespaces[1:2], nil, func() bool { return false }, func(ns host.NetNS) { visited = append(visited, ns.Cookie) })
	s.visit(nil, nil, nil, nil)
	if !slices.Equal(visited, []uint64{13}) {
		t.Errorf("visited %v", visited)
	}
}
