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
	if before := (writtenTable{}); before.sameRules(table([]uint32{1}, nil)) {
		t.Error("a table that another process wrote counts as the same")
	}
}
