package datapath

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/class"
)

// writtenTable is what tells which running connections may have another rule under a later table.
type writtenTable struct {
	classes       []uint32
	anyNetNS      class.Set
	cgroup, netns map[uint64]class.Set
}

func newWrittenTable(t *class.Table) writtenTable {
	w := writtenTable{anyNetNS: t.AnyNetNS, cgroup: maps.Clone(t.Cgroup), netns: maps.Clone(t.NetNS)}
	if t.Dims&class.DimNetNS == 0 {
		w.anyNetNS = class.Full(len(t.Classes))
	}
	for _, c := range t.Classes {
		w.classes = append(w.classes, c.ID)
	}
	return w
}

// of lists the classes of a set of rules, without some.
func (w *writtenTable) of(s class.Set, without map[uint32]bool) (classes []uint32) {
	for i, id := range w.classes {
		if s.Has(i) && !without[id] {
			classes = append(classes, id)
		}
	}
	return classes
}

// ofNetNS lists the classes of a network namespace.
func (w *writtenTable) ofNetNS(cookie uint64) []uint32 {
	if s, named := w.netns[cookie]; named {
		return w.of(s, nil)
	}
	return w.of(w.anyNetNS, nil)
}

// notIn is the classes that another table does not have.
func (w *writtenTable) notIn(other *writtenTable) map[uint32]bool {
	missing := map[uint32]bool{}
	for _, id := range w.classes {
		missing[id] = true
	}
	for _, id := range other.classes {
		delete(missing, id)
	}
	return missing
}

// changes tells which running connections may have another rule under a later table: all, or those of some network namespaces, in no
// order. A class is that of the same rule in both tables.
//
// A rule for named namespaces, or for pods, may come or go alone: it is in the sets of all cgroups and in none of other namespaces. A
// cgroup that only one of the tables knows has come or gone, and no connection has lived through that.
func (w *writtenTable) changes(later *writtenTable) (all bool, netns []uint64) {
	if len(w.classes) == 0 && len(later.classes) > 0 || !slices.Equal(w.of(w.anyNetNS, nil), later.of(later.anyNetNS, nil)) {
		return true, nil // the first is that of another process
	}
	gone, added := w.notIn(later), later.notIn(w)
	for id, set := range w.cgroup {
		if next, has := later.cgroup[id]; has && !slices.Equal(w.of(set, gone), later.of(next, added)) {
			return true, nil
		}
	}
	named := make(map[uint64]class.Set, len(later.netns))
	maps.Copy(named, w.netns)
	maps.Copy(named, later.netns)
	for cookie := range named {
		if !slices.Equal(w.ofNetNS(cookie), later.ofNetNS(cookie)) {
			netns = append(netns, cookie)
		}
	}
	return false, netns
}

// netnsChanges are the entries of the map netns_rules_ns.
type netnsChanges struct {
	cookies []uint64 // by time, oldest first
	rulesNs uint64   // RulesNs when there were none
}

// noteChanges has the programs give nothing new to running connections that may have another rule under a table that is about to come
// into force: it changes d.config, or writes the times of network namespaces. d.mu must be locked.
func (d *Datapath) noteChanges(later *writtenTable) error {
	all, changed := d.table.changes(later)
	now := uint64(monotonic())
	if all || len(changed) > int(d.maps.NetnsRulesNs.MaxEntries()) {
		d.config.RulesNs = now
		return nil
	}
	if err := d.makeRoom(changed); err != nil {
		return fmt.Errorf("changes of network namespaces: %w", err)
	}
	for _, cookie := range changed {
		d.changes.cookies = append(d.changes.cookies, cookie)
		if err := d.maps.NetnsRulesNs.Put(cookie, now); err != nil {
			return fmt.Errorf("changes of network namespaces: %d: %w", cookie, err)
		}
	}
	return nil
}

// makeRoom removes entries of the map netns_rules_ns: all that RulesNs covers, and the oldest as far as there is no room for changed.
// Most of those namespaces are gone by then.
func (d *Datapath) makeRoom(changed []uint64) error {
	c := &d.changes
	if c.rulesNs != d.config.RulesNs {
		if err := deleteWhere(d.maps.NetnsRulesNs, func(*uint64) bool { return true }); err != nil {
			return err
		}
		*c = netnsChanges{rulesNs: d.config.RulesNs}
	}
	again := make(map[uint64]bool, len(changed))
	for _, cookie := range changed {
		again[cookie] = true
	}
	c.cookies = slices.DeleteFunc(c.cookies, func(cookie uint64) bool { return again[cookie] })
	for len(c.cookies)+len(changed) > int(d.maps.NetnsRulesNs.MaxEntries()) {
		if err := d.maps.NetnsRulesNs.Delete(c.cookies[0]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		c.cookies = c.cookies[1:]
	}
	return nil
}
