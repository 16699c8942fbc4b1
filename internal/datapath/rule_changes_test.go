package datapath

import (
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/class"
)

// Running connections go on following their rules, but not if they may have other rules now.
func TestChangesOfRules(t *testing.T) {
	// Classes 1 and 2 are for all; class 8, in between, is only for the namespaces that name it.
	with := func(netns map[uint64]class.Set) *class.Table {
		return &class.Table{Dims: class.DimNetNS, AnyNetNS: class.Set{5}, Classes: []class.Class{{ID: 1}, {ID: 8}, {ID: 2}}, Cgroup: map[uint64]class.Set{7: {3}}, NetNS: netns}
	}
	without := &class.Table{Classes: []class.Class{{ID: 1}, {ID: 2}}, Cgroup: map[uint64]class.Set{7: {1}}}
	one := map[uint64]class.Set{10: {7}}
	changed := func(change func(*class.Table)) *class.Table {
		t := with(one)
		change(t)
		return t
	}
	for name, c := range map[string]struct {
		a, b  *class.Table
		all   bool
		netns []uint64
	}{
		"the same":                    {with(one), with(one), false, nil},
		"a first namespace":           {without, with(one), false, []uint64{10}},
		"another namespace":           {with(one), with(map[uint64]class.Set{10: {7}, 11: {7}}), false, []uint64{11}},
		"other rules":                 {with(one), with(map[uint64]class.Set{10: {5}}), false, []uint64{10}},
		"the same as those of others": {without, with(map[uint64]class.Set{10: {5}}), false, nil},
		"one comes, one goes":         {with(one), with(map[uint64]class.Set{11: {7}}), false, []uint64{10, 11}},
		"an edited rule":              {with(one), changed(func(t *class.Table) { t.Classes[0].ID = 3 }), true, nil},
		"one rule less":               {without, &class.Table{Classes: []class.Class{{ID: 1}}}, true, nil},
		"all namespaces have it":      {without, changed(func(t *class.Table) { t.AnyNetNS = class.Set{7} }), true, nil},
		"another order":               {without, changed(func(t *class.Table) { t.Classes = []class.Class{{ID: 2}, {ID: 8}, {ID: 1}} }), true, nil},
		"another order, which no name tells": {without, changed(func(t *class.Table) {
			t.Classes, t.NetNS, t.Cgroup = []class.Class{{ID: 2}, {ID: 8}, {ID: 1}}, nil, nil
		}), true, nil},
		"a cgroup has another rule": {without, changed(func(t *class.Table) { t.Cgroup = map[uint64]class.Set{7: {6}} }), true, nil},
		"a cgroup comes":            {with(one), changed(func(t *class.Table) { t.Cgroup = map[uint64]class.Set{7: {3}, 8: {7}} }), false, nil},
	} {
		a, b := newWrittenTable(c.a), newWrittenTable(c.b)
		for _, way := range [][2]*writtenTable{{&a, &b}, {&b, &a}} {
			all, netns := way[0].changes(way[1])
			slices.Sort(netns)
			if all != c.all || !slices.Equal(netns, c.netns) {
				t.Errorf("%s: all %t, namespaces %d", name, all, netns)
			}
		}
	}
	if all, _ := new(writtenTable).changes(&writtenTable{classes: []uint32{1}}); !all {
		t.Error("a table that another process wrote counts as the same")
	}
}
