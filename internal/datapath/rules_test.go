package datapath

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/class"
)

// Running connections go on following their rules if pods come or go, but not if they may have other rules now.
func TestSameRules(t *testing.T) {
	table := func(ids []uint32, netns map[uint64]class.Set) *writtenTable {
		c := &class.Table{NetNS: netns, Cgroup: netns}
		for _, id := range ids {
			c.Classes = append(c.Classes, class.Class{ID: id})
		}
		w := newWrittenTable(c)
		return &w
	}
	first, second := class.Set{1}, class.Set{2}
	before := table([]uint32{1, 2}, map[uint64]class.Set{10: first, 11: second})
	for name, c := range map[string]struct {
		now  *writtenTable
		want bool
	}{
		"the same":            {table([]uint32{1, 2}, map[uint64]class.Set{10: first, 11: second}), true},
		"one comes":           {table([]uint32{1, 2}, map[uint64]class.Set{10: first, 11: second, 12: first}), true},
		"one goes":            {table([]uint32{1, 2}, map[uint64]class.Set{11: second}), true},
		"one has other rules": {table([]uint32{1, 2}, map[uint64]class.Set{10: second, 11: second}), false},
		"an edited rule":      {table([]uint32{1, 3}, map[uint64]class.Set{10: first, 11: second}), false},
		"one rule less":       {table([]uint32{1}, map[uint64]class.Set{10: first, 11: second}), false},
	} {
		if got := before.sameRules(c.now); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	// A class that only the pods satisfy that ask for a congestion control comes in front of another, and goes.
	without := &class.Table{Dims: class.DimNetNS, AnyNetNS: class.Set{3}, Classes: []class.Class{{ID: 1}, {ID: 2}}, Cgroup: map[uint64]class.Set{7: first},
		NetNS: map[uint64]class.Set{10: {3}}}
	with := &class.Table{Dims: class.DimNetNS, AnyNetNS: class.Set{5}, Classes: []class.Class{{ID: 1}, {ID: 8}, {ID: 2}}, Cgroup: map[uint64]class.Set{7: {3}},
		NetNS: map[uint64]class.Set{10: {5}, 12: {7}}}
	for _, c := range []struct {
		name   string
		change func(with *class.Table)
		want   bool
	}{
		{"one pod asks", func(*class.Table) {}, true},
		{"a pod that was there asks", func(t *class.Table) { t.NetNS = map[uint64]class.Set{10: {7}} }, false},
		{"all namespaces have it", func(t *class.Table) { t.AnyNetNS = class.Set{7} }, false},
		{"another order", func(t *class.Table) { t.Classes = []class.Class{{ID: 2}, {ID: 8}, {ID: 1}} }, false},
		{"another order, which no name tells", func(t *class.Table) {
			t.Classes, t.NetNS, t.Cgroup = []class.Class{{ID: 2}, {ID: 8}, {ID: 1}}, nil, nil
		}, false},
		{"a cgroup has another rule", func(t *class.Table) { t.Cgroup = map[uint64]class.Set{7: {6}} }, false},
	} {
		changed := *with
		c.change(&changed)
		a, b := newWrittenTable(without), newWrittenTable(&changed)
		if came, went := a.sameRules(&b), b.sameRules(&a); came != c.want || went != c.want {
			t.Errorf("%s: %t when it comes, %t when it goes", c.name, came, went)
		}
	}
	if before := (writtenTable{}); before.sameRules(&writtenTable{classes: []uint32{1}}) {
		t.Error("a table that another process wrote counts as the same")
	}
}
