package engine

import (
	"math"
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/path"
)

func TestRows(t *testing.T) {
	r := rows{ttl: 100, byWrite: list{which: listWrite}, lastID: math.MaxUint32 - 1}
	a, b := &node{key: keyOf(1, 0, nth(0), 24)}, &node{key: keyOf(1, 0, nth(1), 24)}
	r.put(a, written{}, 1000)
	r.put(b, written{}, 1010)
	if a.id != math.MaxUint32 || b.id != 1 { // 0 is no policy
		t.Errorf("ids %d and %d", a.id, b.id)
	}
	if r.due(1049) || !r.due(1050) || !r.due(999) {
		t.Error("a policy is renewed when half of its time is over, or if the clock was set back")
	}
	r.put(a, written{}, 1050)
	if r.byWrite.first != b || a.rowAt != 1000 {
		t.Errorf("a row that is written again is the latest, and there since %d", a.rowAt)
	}
	r.withdraw(a)
	r.withdraw(a)
	if !slices.Equal(r.removed, []key{a.key}) || a.id != 0 || r.byWrite.len != 1 {
		t.Errorf("removed %v, id %d", r.removed, a.id)
	}

	var p path.Policy
	p.NumArms, p.Arms[0].CC = 1, cubic
	one, same := r.written(1, &p), r.written(1, &p)
	p.Arms[0].CC = bbr
	if other := r.written(1, &p); one.arms != same.arms || other.arms == one.arms || len(r.armSets) != 2 || !one.same(&same) || one.same(&other) {
		t.Errorf("%d lists of arms", len(r.armSets))
	}
}
