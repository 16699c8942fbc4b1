package datapath

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/class"
)

const (
	maxPortSets = int(abiAbiLimitsMAX_PORT_SETS)
	numPorts    = 1 << 16
)

// WriteRules puts t into force. The table is built in the unused bank and enabled by one
// write, so that no connection ever sees a partial table. On an error the old table stays.
func (d *Datapath) WriteRules(t *class.Table) error {
	d.mu.Lock()
	defer d.mu.Unlock()

	bank := 1 - d.config.Bank&1
	if err := d.clearBank(bank); err != nil {
		return fmt.Errorf("clear rule bank %d: %w", bank, err)
	}
	if err := d.writeBank(bank, t); err != nil {
		return fmt.Errorf("write rules: %w", err)
	}
	begun, err := d.beginCounts(t.Classes)
	if err != nil {
		return fmt.Errorf("write rules: %w", err)
	}
	before := d.config
	d.config.Bank = bank
	table := newWrittenTable(t)
	if err := d.noteChanges(&table); err != nil {
		d.config = before
		return fmt.Errorf("write rules: %w", err)
	}
	if err := d.putConfig(); err != nil {
		d.config = before
		return fmt.Errorf("switch rules: %w", err)
	}
	d.table, d.begun = table, begun
	d.adoption.wanted.Add(1)
	d.lowats.changed()
	if err := d.trimEvents(); err != nil { // the rules are in force
		d.log.Warn("events of removed rules stay counted", "error", err)
	}
	return nil
}

func ruleSet(s class.Set) abiRuleSet { return abiRuleSet{Word: s} }

func (d *Datapath) writeBank(bank uint32, t *class.Table) error {
	b := abiRuleBank{
		NumRules:  uint32(len(t.Classes)),
		AnyCgroup: ruleSet(t.AnyCgroup), AnyNetns: ruleSet(t.AnyNetNS),
		Outgoing: ruleSet(t.Outgoing), Incoming: ruleSet(t.Incoming),
		AnySame: ruleSet(t.AnySame),
		Dims:    uint32(t.Dims), NumSame: uint32(len(t.Same)),
	}
	if t.Dims&class.DimDirection == 0 { // the programs always read these sets
		all := ruleSet(class.Full(len(t.Classes)))
		b.Outgoing, b.Incoming = all, all
	}
	if len(t.Same) > len(b.Same) {
		return fmt.Errorf("%d same-prefix comparisons: at most %d", len(t.Same), len(b.Same))
	}
	for i, s := range t.Same {
		b.Same[i] = samePrefix(s)
	}
	remote, local := few(&b, fewRemote, t.Remote), few(&b, fewLocal, t.Local)
	steps := []struct {
		what string
		do   func() error
	}{
		{"classes", func() error { return d.writeClasses(bank, t) }},
		{"remote prefixes", func() error { return d.writePrefixes(d.maps.RemoteRules, bank, remote) }},
		{"local prefixes", func() error { return d.writePrefixes(d.maps.LocalRules, bank, local) }},
		{"remote ports", func() error { return d.writePorts(bank, 0, t.RemotePort) }},
		{"local ports", func() error { return d.writePorts(bank, 1, t.LocalPort) }},
		{"cgroups", func() error { return writeIDs(d.maps.CgroupRules, bank, t.Cgroup) }},
		{"network namespaces", func() error { return writeIDs(d.maps.NetnsRules, bank, t.NetNS) }},
		{"bank", func() error { return d.maps.RuleBanks.Put(bank, &b) }},
		// Last, because it takes effect at once.
		{"answers to timeouts", func() error { return d.writeTimeouts(t.Classes) }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// Indices of abiRuleBank.Few (FEW_REMOTE and FEW_LOCAL of bpf/include/abi.h).
const (
	fewRemote = iota
	fewLocal
)

// few puts the rows of a prefix dimension into the bank itself if they fit, longest prefix
// first. It returns the rows that must go into the dimension's trie.
func few(b *abiRuleBank, which int, rows []class.PrefixSet) []class.PrefixSet {
	if len(rows) > len(b.Few[which]) {
		return rows
	}
	sorted := slices.Clone(rows)
	slices.SortStableFunc(sorted, func(x, y class.PrefixSet) int {
		_, a := mapped(x.Prefix)
		_, b := mapped(y.Prefix)
		return int(b) - int(a)
	})
	for i, r := range sorted {
		addr, bits := mapped(r.Prefix)
		b.Few[which][i] = abiMaskedPrefix{Addr: addr, Mask: prefixMask(bits), Rules: ruleSet(r.Rules)}
	}
	b.NumFew[which] = uint32(len(rows))
	return nil
}

// prefixMask has the first bits bits set.
func prefixMask(bits uint32) (mask [16]uint8) {
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

func samePrefix(s class.SamePrefix) abiSamePrefix {
	p, bits := abiSamePrefix{Rules: ruleSet(s.Rules)}, uint32(s.Bits)
	if s.V4 {
		p.V4 = 1
		bits += 96 // of the v4-mapped address
	}
	p.Mask = prefixMask(bits)
	return p
}

func (d *Datapath) writeClasses(bank uint32, t *class.Table) error {
	classes, undirected := t.Classes, t.Undirected()
	if len(classes) > class.MaxRules {
		return fmt.Errorf("%d rules: at most %d", len(classes), class.MaxRules)
	}
	for i := range class.MaxRules {
		var e abiClassEntry
		if i < len(classes) {
			e = classEntry(classes[i])
		}
		if i < undirected {
			e.Flags |= uint32(abiClassFlagsCLASS_UNDIRECTED)
		}
		if err := d.maps.Classes.Put(bank*class.MaxRules+uint32(i), &e); err != nil {
			return err
		}
	}
	return nil
}

// writeTimeouts replaces the answers to timeouts. Both banks share them, because they are found by class.
// A changed answer takes effect at once, also for running connections.
func (d *Datapath) writeTimeouts(classes []class.Class) error {
	answered := map[uint32]bool{}
	for _, c := range classes {
		if c.Timeouts == (class.Timeouts{}) {
			continue
		}
		answered[c.ID] = true
		a := abiTimeoutAnswer{After: c.Timeouts.After, Share: c.Timeouts.Share, Cc: c.Timeouts.CC}
		if err := d.maps.TimeoutAnswers.Put(c.ID, &a); err != nil {
			return err
		}
	}
	return deleteWhere(d.maps.TimeoutAnswers, func(class *uint32) bool { return !answered[*class] })
}

func classEntry(c class.Class) abiClassEntry {
	e := abiClassEntry{Id: c.ID, WatchShare: c.WatchShare, Limit: c.Limit}
	if c.Leave {
		e.Flags |= uint32(abiClassFlagsCLASS_LEAVE)
	}
	if c.Named {
		e.Flags |= uint32(abiClassFlagsCLASS_NAMED)
	}
	if c.Timeouts != (class.Timeouts{}) {
		e.Flags |= uint32(abiClassFlagsCLASS_TIMEOUTS)
	}
	if c.PeerAny {
		e.Flags |= uint32(abiClassFlagsCLASS_PEER_ANY)
	}
	if c.Switch {
		e.Flags |= uint32(abiClassFlagsCLASS_SWITCH)
	}
	if c.Switch || c.Timeouts != (class.Timeouts{}) || c.Watch != 0 || c.Limit != 0 {
		e.Flags |= uint32(abiClassFlagsCLASS_FOLLOW_ALL)
	}
	if c.OwnScope {
		e.Flags |= uint32(abiClassFlagsCLASS_OWN_SCOPE)
	}
	// BPF_SOCK_OPS_{RTO,RETRANS,STATE}_CB_FLAG are bits 0, 1 and 2, as class.Watch*.
	e.CbFlags = uint32(c.Watch)
	return e
}

func (d *Datapath) writePrefixes(m *ebpf.Map, bank uint32, rows []class.PrefixSet) error {
	for _, r := range rows {
		addr, bits := mapped(r.Prefix)
		key := abiRulePrefix{Prefixlen: 32 + bits, Bank: bank, Addr: addr}
		s := ruleSet(r.Rules)
		if err := m.Put(&key, &s); err != nil {
			return fmt.Errorf("%s: %w", r.Prefix, err)
		}
	}
	return nil
}

func (d *Datapath) writePorts(bank, which uint32, runs []class.PortRange) error {
	if len(runs) == 0 {
		return nil
	}
	if len(runs) > maxPortSets {
		return fmt.Errorf("%d port ranges: at most %d", len(runs), maxPortSets)
	}
	keys := make([]uint32, numPorts)
	values := make([]uint32, numPorts)
	base := (bank*2 + which) * numPorts
	for i, r := range runs {
		s := ruleSet(r.Rules)
		if err := d.maps.PortSets.Put((bank*2+which)*uint32(maxPortSets)+uint32(i), &s); err != nil {
			return err
		}
		for p := int(r.First); p <= int(r.Last); p++ {
			values[p] = uint32(i)
		}
	}
	for p := range keys {
		keys[p] = base + uint32(p)
	}
	return putBatch(d.maps.PortRules, keys, values)
}

func writeIDs(m *ebpf.Map, bank uint32, sets map[uint64]class.Set) error {
	for id, s := range sets {
		v := ruleSet(s)
		if err := m.Put(&abiRuleId{Bank: bank, Id: id}, &v); err != nil {
			return fmt.Errorf("id %d: %w", id, err)
		}
	}
	return nil
}

// clearBank removes the entries of an earlier table from hash maps and tries; arrays are
// overwritten completely.
func (d *Datapath) clearBank(bank uint32) error {
	for _, m := range []*ebpf.Map{d.maps.RemoteRules, d.maps.LocalRules} {
		if err := deleteWhere(m, func(k *abiRulePrefix) bool { return k.Bank == bank }); err != nil {
			return err
		}
	}
	for _, m := range []*ebpf.Map{d.maps.CgroupRules, d.maps.NetnsRules} {
		if err := deleteWhere(m, func(k *abiRuleId) bool { return k.Bank == bank }); err != nil {
			return err
		}
	}
	return nil
}

// LastClass returns the greatest class id of either bank, so that a daemon that
// adopts the maps can number its own classes after those of the one before.
func (d *Datapath) LastClass() (last uint32, err error) {
	ids, err := d.classIDs()
	for id := range ids {
		last = max(last, id)
	}
	return last, err
}

// classIDs returns the class ids of both banks.
func (d *Datapath) classIDs() (map[uint32]bool, error) {
	var i uint32
	var e abiClassEntry
	ids := map[uint32]bool{}
	it := d.maps.Classes.Iterate()
	for it.Next(&i, &e) {
		ids[e.Id] = true
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read classes: %w", err)
	}
	return ids, nil
}
