package podlink

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// Meter counts the traffic of a pod in one direction since its limit is in force, and its packets above 64 KB.
type Meter struct {
	Passed  uint64 // bytes on the wire
	Marked  uint64 // packets, after segmentation, that passed with a mark of congestion (ECN)
	Dropped uint64 // packets, after segmentation
	Big     uint64 // packets above 64 KB, before segmentation, that passed; only of Pod.Big
	// DroppedBytes are those of the dropped packets, on the wire.
	DroppedBytes uint64
}

// Meters are the meters of a pod's two directions, as the pod sees them.
type Meters struct{ Egress, Ingress Meter }

func (m *Meters) add(raw *abiPodMeters) {
	m.Egress.add(&raw.Egress)
	m.Ingress.add(&raw.Ingress)
}

func (m *Meter) add(raw *abiPodMeter) {
	m.Passed += raw.Bytes
	m.Marked += raw.Marked
	m.Dropped += raw.Dropped
	m.DroppedBytes += raw.DroppedBytes
	m.Big += raw.Big
}

// meters is the map of meters. Its keys are the devices of pods with a limit, or whose packets above 64 KB
// are counted.
type meters struct {
	mu   sync.Mutex
	m    *ebpf.Map
	keys map[uint32]bool
	gone Meters // of pods that are gone
}

// open reads the keys that an earlier process left, whose meters go on.
func (t *meters) open(m *ebpf.Map) error {
	t.m, t.keys = m, map[uint32]bool{}
	var key uint32
	var raw abiPodMeters
	rows := m.Iterate()
	for rows.Next(&key, &raw) {
		t.keys[key] = true
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read meters of pods: %w", err)
	}
	return nil
}

// add makes a device's meter, unless it has one.
func (t *meters) add(ifindex uint32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys[ifindex] {
		return nil
	}
	if err := t.m.Put(ifindex, &abiPodMeters{}); err != nil {
		return fmt.Errorf("add meter of pod: %w", err)
	}
	t.keys[ifindex] = true
	return nil
}

// trim deletes all meters but these.
func (t *meters) trim(keep map[uint32]bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ifindex := range t.keys {
		if keep[ifindex] {
			continue
		}
		var raw abiPodMeters
		if err := t.m.LookupAndDelete(ifindex, &raw); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete meter of pod: %w", err)
		}
		t.gone.add(&raw)
		delete(t.keys, ifindex)
	}
	return nil
}

// Meters are the meters of the pod whose device has the index on the host; zero if the pod has none.
func (l *Links) Meters(ifindex int) (m Meters) {
	l.reading.RLock()
	defer l.reading.RUnlock()
	var raw abiPodMeters
	if l.meters.m.Lookup(uint32(ifindex), &raw) == nil {
		m.add(&raw)
	}
	return m
}

// TotalMeters are the sums over all pods, those that are gone included.
func (l *Links) TotalMeters() Meters {
	l.reading.RLock()
	defer l.reading.RUnlock()
	t := &l.meters
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.gone
	for ifindex := range t.keys {
		var raw abiPodMeters
		if t.m.Lookup(ifindex, &raw) == nil {
			sum.add(&raw)
		}
	}
	return sum
}
