package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// flows gives each path whose connections are counted a row of the map flow_counts. Programs
// count a connection at its beginning and at its end in the row that its policy named. A path
// keeps its row over restarts, and when its rule is edited; a row is given to another path
// only when all of its connections are over.
type flows struct {
	mu   sync.Mutex            // nothing slow is done under it
	keys map[abiPathKey]uint32 // rows of policies
	of   map[uint64]uint32     // rows by flowID
	used []uint16              // number of keys, by row
	next uint32                // rows from here on were never given
	look uint32                // where to look for a row without connections

	counts []abiFlowCount // the map's memory
	found  []uint64       // that of the iterator's map; nil without an iterator
	off    []int32        // by row, what the last check found: connections too many or too few
}

// openFlows maps the counts, and reads which path each row belongs to.
func (d *Datapath) openFlows() error {
	f := &d.flows
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	if f.counts, err = mapMemory[abiFlowCount](d.maps.FlowCounts); err != nil {
		return fmt.Errorf("map flow counts: %w", err)
	}
	if d.live != nil {
		if f.found, err = mapMemory[uint64](d.live.objs.FlowsFound); err != nil {
			return fmt.Errorf("map counts of the iterator: %w", err)
		}
	}
	f.keys, f.of, f.next = map[abiPathKey]uint32{}, map[uint64]uint32{}, 1
	f.used, f.off = make([]uint16, len(f.counts)), make([]int32, len(f.counts))
	for row := range f.counts {
		if id := f.counts[row].Path; id != 0 {
			f.of[id] = uint32(row)
			f.next = uint32(row) + 1
		}
	}
	return nil
}

func (f *flows) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := errors.Join(unmapMemory(f.counts), unmapMemory(f.found))
	f.counts, f.found = nil, nil
	return err
}

// flowID identifies a path for as long as its rule has the same name. It is not 0.
func flowID(rule string, k *abiPathKey) uint64 {
	h := fnv.New64a()
	h.Write([]byte(rule))
	var place [29]byte // a separator, and the key without the class
	binary.LittleEndian.PutUint64(place[1:], k.Scope)
	binary.LittleEndian.PutUint32(place[9:], k.Prefixlen)
	copy(place[13:], k.Addr[:])
	h.Write(place[:])
	return max(1, h.Sum64())
}

// row returns the row of a policy's path; 0 if there is no room.
func (f *flows) row(rule string, k *abiPathKey) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if row := f.keys[*k]; row != 0 {
		return row
	}
	id := flowID(rule, k)
	row := f.of[id]
	if row == 0 {
		if row = f.unused(); row == 0 {
			return 0
		}
		delete(f.of, f.counts[row].Path)
		f.counts[row].Path, f.of[id], f.off[row] = id, row, 0
	}
	f.keys[*k] = row
	f.used[row]++
	return row
}

// rowsTried bounds how many rows are looked at for one that no policy and no connection uses.
const rowsTried = 256

func (f *flows) unused() uint32 {
	if int(f.next) < len(f.counts) {
		f.next++
		return f.next - 1
	}
	for range rowsTried {
		if f.look++; int(f.look) >= len(f.counts) {
			f.look = 1
		}
		if c := load(&f.counts[f.look]); f.used[f.look] == 0 && c.Begun == c.Ended {
			return f.look
		}
	}
	return 0
}

// release notes that the policy of a path was deleted.
func (f *flows) release(k *abiPathKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if row := f.keys[*k]; row != 0 {
		f.drop(k, row)
	}
}

// drop is release, with the lock held.
func (f *flows) drop(k *abiPathKey, row uint32) {
	delete(f.keys, *k)
	if f.used[row]--; f.used[row] == 0 {
		f.setClamp(row, 0, 0)
	}
}

// clamp puts the clamp of a path into its row, for connections that run as well.
func (f *flows) clamp(row uint32, p *path.Policy) {
	if row == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		return // closed meanwhile
	}
	all := uint64(0)
	if p.Adapted&(1<<tcp.CwndClamp) != 0 && p.HoldOut < 1<<16 {
		all, _ = p.Params.Get(tcp.CwndClamp)
	}
	f.setClamp(row, uint32(all), uint32(p.LeastClamp))
}

func (f *flows) setClamp(row, all, least uint32) {
	atomic.StoreUint32(&f.counts[row].LeastClamp, least)
	atomic.StoreUint32(&f.counts[row].Clamp, all)
}

// releaseExcept is release for the policies of all classes for which keep returns false.
func (f *flows) releaseExcept(keep func(class uint32) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, row := range f.keys {
		if !keep(k.Class) {
			f.drop(&k, row)
		}
	}
}

// active is how many connections a row counts now.
func (f *flows) active(row uint32) uint32 {
	now := load(&f.counts[row])
	return uint32(max(0, int32(now.Begun-now.Ended)))
}

// load reads a row. An end that is counted between the two reads is not missed.
func load(c *abiFlowCount) abiFlowCount {
	begun := atomic.LoadUint32(&c.Begun)
	return abiFlowCount{Begun: begun, Ended: atomic.LoadUint32(&c.Ended)}
}

// Flows returns how many established connections the path of a policy has; false if they are
// not counted.
func (d *Datapath) Flows(k path.Key) (n uint32, ok bool) {
	key, err := encodeKey(k)
	if err != nil {
		return 0, false
	}
	f := &d.flows
	f.mu.Lock()
	defer f.mu.Unlock()
	row := f.keys[key]
	if row == 0 || f.counts == nil {
		return 0, false
	}
	return f.active(row), true
}

// switchesPerWalk bounds how many running connections one walk switches to another congestion
// control.
const switchesPerWalk = 100

// Walk runs walk, which must call SampleLive in all network namespaces and report whether it
// could. Then it compares the counts of connections with what was found. A row is corrected
// if it was wrong after the walk before as well, because a connection may begin or end during
// a walk. Walk returns how many connections were counted too many, or too few.
func (d *Datapath) Walk(walk func() (all bool, err error)) (tooMany, tooFew int, err error) {
	f := &d.flows
	if d.live == nil {
		_, err := walk()
		return 0, 0, err
	}
	if err := d.live.objs.SwitchesLeft.Set(uint32(switchesPerWalk)); err != nil {
		return 0, 0, fmt.Errorf("set how many connections may be switched: %w", err)
	}
	f.mu.Lock()
	before := make([]abiFlowCount, f.next)
	for i := range before {
		before[i] = load(&f.counts[i])
		atomic.StoreUint64(&f.found[i], 0)
	}
	f.mu.Unlock()
	if all, err := walk(); err != nil || !all {
		return 0, 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		return 0, 0, nil // closed meanwhile
	}
	for row := range before {
		fix := f.check(row, before[row])
		switch c := &f.counts[row]; {
		case fix > 0:
			atomic.AddUint32(&c.Ended, uint32(fix))
			tooMany += int(fix)
		case fix < 0:
			atomic.AddUint32(&c.Begun, uint32(-fix))
			tooFew += int(-fix)
		}
	}
	return tooMany, tooFew, nil
}

// check returns how many connections a row counts too many; negative: too few. before is what
// it was before a walk.
func (f *flows) check(row int, before abiFlowCount) (fix int32) {
	now, found := load(&f.counts[row]), uint32(atomic.LoadUint64(&f.found[row]))
	// What began during the walk may have been found or not, and so may what ended.
	most := int32(found + now.Begun - before.Begun)
	least := int32(found - (now.Ended - before.Ended))
	active := int32(now.Begun - now.Ended)
	off := max(0, active-most) + min(0, active-least)
	last := f.off[row]
	fix = min(max(0, off), max(0, last)) + max(min(0, off), min(0, last))
	f.off[row] = off - fix
	return fix
}

// mapMemory maps the values of an array map. Atomic operations on it count for programs as
// well, which those on ebpf.Memory do not.
func mapMemory[T abiFlowCount | uint64](m *ebpf.Map) ([]T, error) {
	n, size := int(m.MaxEntries()), int(unsafe.Sizeof(*new(T)))
	mem, err := unix.Mmap(m.FD(), 0, n*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), n), nil
}

func unmapMemory[T abiFlowCount | uint64](values []T) error {
	if values == nil {
		return nil
	}
	size := int(unsafe.Sizeof(*new(T)))
	return unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*size))
}
