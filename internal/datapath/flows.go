package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"
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
	look uint32                // latest row that was looked at for one without connections

	counts  []abiFlowCount // memory of the map flow_counts
	found   []uint64       // memory of the iterator's map flows_found; nil without an iterator
	partial []bool         // by row: on a busy host, only a share of the path's connections is followed and counted
	off     []int32        // by row, the error that the last check left: connections too many or, negative, too few
	given   uint64         // how often a policy was given a row

	// For join; only the caller of Walk uses them.
	joining  bool // SampleLive counts connections that no hook counted
	joined   joinState
	joinedAt int64 // monotonic nanoseconds
}

// openFlows maps the counts, and reads which path each row belongs to.
func (d *Datapath) openFlows() error {
	f := &d.flows
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	if f.counts, err = mapMemory[abiFlowCount](d.maps.FlowCounts, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("map flow counts: %w", err)
	}
	if d.live != nil {
		if f.found, err = mapMemory[uint64](d.live.objs.FlowsFound, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return fmt.Errorf("map counts of the iterator: %w", err)
		}
	}
	f.keys, f.of, f.next = map[abiPathKey]uint32{}, map[uint64]uint32{}, 1
	f.used, f.partial, f.off = make([]uint16, len(f.counts)), make([]bool, len(f.counts)), make([]int32, len(f.counts))
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
	var place [33]byte // a separator, and the key without the class
	binary.LittleEndian.PutUint32(place[1:], k.Prefixlen)
	binary.LittleEndian.PutUint32(place[5:], k.Class&^pathClass)
	copy(place[9:], k.Rest[:])
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
		f.partial[row] = false
	}
	f.keys[*k] = row
	f.used[row]++
	f.given++
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

// release notes that the policy of a path was deleted. It returns the path's row if no policy
// uses that any more, otherwise 0.
func (f *flows) release(k *abiPathKey) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.drop(k)
}

// drop is release, with the lock held.
func (f *flows) drop(k *abiPathKey) uint32 {
	row := f.keys[*k]
	if row == 0 {
		return 0
	}
	delete(f.keys, *k)
	if f.used[row]--; f.used[row] != 0 {
		return 0
	}
	if f.counts != nil { // else it was closed meanwhile
		f.setClamp(row, 0, 0)
	}
	return row
}

// note puts what a path's policy says of its connections into its row: their clamp, where running ones find it too, and
// whether all of them are followed.
func (f *flows) note(row uint32, p *path.Policy) {
	if row == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		return // closed meanwhile
	}
	// Once all are to be followed, the next walk adopts the others.
	f.partial[row] = unfollowed(p) || f.partial[row] && !p.FollowAll
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

// releaseExcept is release for the policies of all classes for which keep returns false. It
// returns the rows that no policy uses any more.
func (f *flows) releaseExcept(keep func(class uint32) bool) (unused []uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.keys {
		if keep(k.Class & pathClass) {
			continue
		}
		if row := f.drop(&k); row != 0 {
			unused = append(unused, row)
		}
	}
	return unused
}

// path is the id of the path of a row; 0 is none.
func (f *flows) path(row uint32) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if row == 0 || int(row) >= len(f.counts) {
		return 0
	}
	return f.counts[row].Path
}

// active is how many connections a row counts now.
func (f *flows) active(row uint32) uint32 {
	now := load(&f.counts[row])
	return uint32(max(0, int32(now.Begun-now.Ended)))
}

// load reads a row. Because it reads Begun first, the difference may be too small, but never too large.
func load(c *abiFlowCount) abiFlowCount {
	begun := atomic.LoadUint32(&c.Begun)
	return abiFlowCount{Begun: begun, Ended: atomic.LoadUint32(&c.Ended)}
}

// Flows returns how many established connections the path of a policy has; false if not all of them are counted.
func (d *Datapath) Flows(k path.Key) (n uint32, ok bool) {
	key, err := encodeKey(k)
	if err != nil {
		return 0, false
	}
	f := &d.flows
	f.mu.Lock()
	defer f.mu.Unlock()
	row := f.keys[key]
	if row == 0 || f.counts == nil || f.partial[row] && d.adoption.leftOut.Load() {
		return 0, false
	}
	return f.active(row), true
}

// Walk runs walk, which must call SampleLive in all network namespaces and report whether it
// could; a second time if there are connections that no hook counted. Then it compares the counts
// of connections with what was found. A row is corrected if it was wrong after the walk before as
// well, because a connection may begin or end during a walk. Walk returns how many connections
// were counted too many, or too few.
func (d *Datapath) Walk(walk func() (all bool, err error)) (tooMany, tooFew int, err error) {
	f := &d.flows
	d.listeners.pending.Store(false)
	if d.live == nil {
		_, err := walk()
		return 0, 0, err
	}
	looked := d.lowats.begin()
	adopted, err := d.beginAdoption()
	if err != nil {
		return 0, 0, err
	}
	f.mu.Lock()
	before := make([]abiFlowCount, f.next)
	for i := range before {
		before[i] = load(&f.counts[i])
		atomic.StoreUint64(&f.found[i], 0)
	}
	f.mu.Unlock()
	if err := d.live.objs.Uncounted.Set(uint32(0)); err != nil {
		return 0, 0, fmt.Errorf("clear the number of connections that are not counted: %w", err)
	}
	if all, err := walk(); err != nil || !all {
		return 0, 0, err
	}
	adopted()
	looked()
	if all, err := d.join(walk); err != nil || !all {
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

// joinPause is the least time between two joins as long as the number of uncounted connections is
// the same: most of these belong to paths whose policies do not count connections.
const joinPause = time.Minute

// join walks once more, if there are connections that no hook counted and policies that count
// them.
func (d *Datapath) join(walk func() (bool, error)) (all bool, err error) {
	f := &d.flows
	var n uint32
	if err := d.live.objs.Uncounted.Get(&n); err != nil {
		return false, fmt.Errorf("read the number of connections that are not counted: %w", err)
	}
	f.mu.Lock()
	state, now := joinState{n, f.given}, monotonic()
	due := n > 0 && len(f.keys) > 0 && (state != f.joined || now-f.joinedAt >= int64(joinPause))
	f.mu.Unlock()
	if !due {
		return true, nil
	}
	f.joining = true
	defer func() { f.joining = false }()
	f.joined, f.joinedAt = state, now
	return walk()
}

// joinState is what join saw the last time. If it has changed, another walk may find
// connections that can be counted.
type joinState struct {
	uncounted uint32 // connections
	given     uint64 // flows.given
}

// check returns by how many connections a row is to be corrected: positive if it counts too many,
// negative if too few. before is the row as it was before a walk.
func (f *flows) check(row int, before abiFlowCount) (fix int32) {
	now, found := load(&f.counts[row]), uint32(atomic.LoadUint64(&f.found[row]))
	// The walk may or may not have found connections that began or ended during it.
	most := int32(found + now.Begun - before.Begun)
	least := int32(found - (now.Ended - before.Ended))
	active := int32(now.Begun - now.Ended)
	off := max(0, active-most) + min(0, active-least)
	last := f.off[row]
	fix = min(max(0, off), max(0, last)) + max(min(0, off), min(0, last))
	f.off[row] = off - fix
	return fix
}

// mapMemory maps the values of an array map. Unlike ebpf.Memory, which copies, it allows
// operations that are atomic for programs as well. protection is PROT_READ, or with PROT_WRITE.
func mapMemory[T abiFlowCount | abiTrack | abiCounters | uint64](m *ebpf.Map, protection int) ([]T, error) {
	n, size := int(m.MaxEntries()), int(unsafe.Sizeof(*new(T)))
	mem, err := unix.Mmap(m.FD(), 0, n*size, protection, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), n), nil
}

func unmapMemory[T abiFlowCount | abiTrack | abiCounters | uint64](values []T) error {
	if values == nil {
		return nil
	}
	size := int(unsafe.Sizeof(*new(T)))
	return unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*size))
}
