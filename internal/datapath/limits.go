package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/limit"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// limits are the rate limits in force: set ones, of rules and network namespaces, and those of paths that have
// a policer.
type limits struct {
	mu    sync.Mutex
	set   map[uint64]limit.Limit // by key of the map limits
	paths map[uint64]limit.Limit
	epoch uint32              // of the latest division
	bases map[uint64]uint32   // limit.base of the latest division, by key
	given map[uint64]struct{} // cookies in the map limit_shares
	count map[uint64]struct{} // keys in the map limit_ended

	objs limitsObjects
	list *link.Iter // lists the connections under limits; nil: they cannot be listed
	here bool       // it lists only those of the calling thread's network namespace
	walk *link.Iter // brings connections in line with the limits; nil: see err
	err  error      // why list and walk are not available
}

// loadLimits loads the programs that list and change connections under limits, and removes the
// limits of an earlier process. If one of these is set again, its connections are under it at once.
// If the programs cannot be loaded, limits are divided by the number of connections.
func (d *Datapath) loadLimits() {
	l := &d.limits
	l.set, l.paths, l.bases = map[uint64]limit.Limit{}, map[uint64]limit.Limit{}, map[uint64]uint32{}
	l.given, l.count = map[uint64]struct{}{}, map[uint64]struct{}{}
	// Another epoch than those of an earlier process, so that the shares it gave are not used any more.
	l.epoch = uint32(monotonic()>>20) | 1
	l.err = errors.Join(
		deleteWhere(d.maps.Limits, func(*uint64) bool { return true }),
		deleteWhere(d.maps.LimitShares, func(*uint64) bool { return true }),
		deleteWhere(d.maps.LimitEnded, func(*uint64) bool { return true }),
		l.load(d.maps, d.cgroupID))
	if l.err != nil {
		d.log.Warn("rate limits are divided by the number of connections only", "error", l.err)
	}
}

// load loads the programs with the maps of the hooks. Connections without state come under limits only below
// the cgroup of the given id; 0 is any. A kernel that was hardened may refuse iterators over maps (EPERM): then connections are listed by
// the TCP iterator.
func (l *limits) load(m *sockopsMaps, cgroup uint64) error {
	err := l.loadFor(m, cgroup, false)
	if errors.Is(err, unix.EPERM) {
		_ = l.close() // what it has loaded
		err = l.loadFor(m, cgroup, true)
	}
	return err
}

// loadFor is load with a program that lists all connections under limits, or those of one network namespace.
func (l *limits) loadFor(m *sockopsMaps, cgroup uint64, here bool) error {
	spec, err := loadLimits()
	if err != nil {
		return fmt.Errorf("read embedded object limits: %w", err)
	}
	if err := spec.Variables[limitsVarAttachedCgroup].Set(cgroup); err != nil {
		return fmt.Errorf("set cgroup: %w", err)
	}
	if here {
		spec.Programs[limitsProgTcpilotLimited] = spec.Programs[limitsProgTcpilotLimitedHere].Copy()
	}
	if err := spec.LoadAndAssign(&l.objs, withMaps(spec, m.replacements(spec))); err != nil {
		return explainLoad("limits", err)
	}
	opt := link.IterOptions{Program: l.objs.TcpilotLimited, Map: l.objs.Limited}
	if l.here = here; here {
		opt.Map = nil
	}
	if l.list, err = link.AttachIter(opt); err != nil {
		return fmt.Errorf("attach iterator over limited connections: %w", err)
	}
	if l.walk, err = link.AttachIter(link.IterOptions{Program: l.objs.TcpilotLimitWalk}); err != nil {
		return fmt.Errorf("attach TCP iterator for limits: %w", err)
	}
	return nil
}

func (l *limits) feature() Feature {
	if l.here {
		return Feature{featureHere, l.err}
	}
	return Feature{featureLimits, l.err}
}

func (l *limits) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, it := range []*link.Iter{l.list, l.walk} {
		if it != nil {
			errs = append(errs, it.Close())
		}
	}
	l.list, l.walk = nil, nil
	l.objs.limitsVariables = limitsVariables{} // mapped memory holds a map
	return errors.Join(append(errs, l.objs.Close())...)
}

// SetLimits puts rate limits into force: of rules, by their keys (class.Class.Limit), and of all connections of network
// namespaces, by their cookies. Limits that are not among them end: their connections get back what they had. Running
// connections follow at their next round trip, or when FollowLimits finds them. If one of them fails, the others are in force, and the
// next call tries it again.
func (d *Datapath) SetLimits(rules, namespaces map[uint64]limit.Limit) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	set := map[uint64]limit.Limit{}
	maps.Copy(set, namespaces)
	maps.Copy(set, rules)
	l := &d.limits
	l.mu.Lock()
	old := l.set
	l.set = set
	l.mu.Unlock()
	var errs []error
	kept := map[uint64]limit.Limit{} // they end at the next call
	for key := range old {
		if _, ok := set[key]; ok {
			continue
		}
		if err := d.endLimit(key); err != nil {
			errs = append(errs, err)
			kept[key] = old[key]
		}
	}
	for key, x := range set {
		if err := d.putLimit(key, x); err != nil {
			errs = append(errs, err)
		}
	}
	l.mu.Lock()
	maps.Copy(l.set, kept)
	l.mu.Unlock()
	return errors.Join(append(errs, d.flagLimits(limitsOfNetNS, len(namespaces) > 0))...)
}

// Bits of runtime_config.limits.
const (
	limitsAny     = uint32(abiLimitFlagsLIMITS_ANY)
	limitsOfNetNS = uint32(abiLimitFlagsLIMITS_OF_NETNS)
)

// flagLimits tells the programs which limits there may be. d.mu must be locked.
func (d *Datapath) flagLimits(flag uint32, on bool) error {
	old := d.config.Limits
	d.config.Limits &^= flag
	if on {
		d.config.Limits |= flag
	}
	if d.config.Limits == old {
		return nil
	}
	err := d.putConfig()
	if err != nil {
		d.config.Limits = old
	}
	return err
}

// pacedRate is the rate that a policy gives to all connections of its path together, bytes/s.
func pacedRate(p *path.Policy) uint64 {
	rate, ok := p.Params.Get(tcp.MaxPacingRate)
	if !ok || p.Adapted&(1<<tcp.MaxPacingRate) == 0 || p.HoldOut == 1<<16 {
		return 0
	}
	return rate
}

// limitPath sets the rate limit, in bytes per second, of the path that a row of flow_counts belongs to;
// 0 is no limit. d.mu must be locked.
func (d *Datapath) limitPath(row uint32, rate uint64) error {
	key := d.flows.path(row)
	if key == 0 {
		return nil
	}
	l := &d.limits
	l.mu.Lock()
	old, had := l.paths[key]
	if rate == 0 {
		delete(l.paths, key)
	} else {
		l.paths[key] = limit.Limit{Rate: rate}
	}
	l.mu.Unlock()
	switch {
	case rate == 0 && had:
		return d.endLimit(key)
	case rate != 0 && rate != old.Rate:
		err := d.putLimit(key, limit.Limit{Rate: rate})
		if errors.Is(err, unix.E2BIG) { // no room: the connections of this path are not paced
			l.mu.Lock()
			delete(l.paths, key)
			l.mu.Unlock()
			return nil
		}
		return err
	}
	return nil
}

// putLimit writes one limit, and makes the programs count what its connections have sent when they end.
func (d *Datapath) putLimit(key uint64, x limit.Limit) error {
	if err := d.flagLimits(limitsAny, true); err != nil { // it stays: connections may be in the map limited
		return err
	}
	l := &d.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.count[key]; !ok {
		if err := d.maps.LimitEnded.Put(key, uint64(0)); err != nil {
			return fmt.Errorf("count what connections of a limit send: %w", err)
		}
		l.count[key] = struct{}{}
	}
	l.nextEpoch() // writeLimit sets the number of fresh connections to 0
	return d.writeLimit(key, x)
}

// nextEpoch makes connections look their shares up again.
func (l *limits) nextEpoch() {
	if l.epoch++; l.epoch == 0 {
		l.epoch = 1
	}
}

func (d *Datapath) writeLimit(key uint64, x limit.Limit) error {
	l := &d.limits
	v := abiLimit{Rate: x.Rate, Connection: x.Connection, Base: l.bases[key], Epoch: l.epoch}
	if err := d.maps.Limits.Put(key, &v); err != nil {
		return fmt.Errorf("write rate limit: %w", err)
	}
	return nil
}

func (d *Datapath) endLimit(key uint64) error {
	l := &d.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.count, key)
	delete(l.bases, key)
	for _, m := range []*ebpf.Map{d.maps.Limits, d.maps.LimitEnded} {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("end rate limit: %w", err)
		}
	}
	return nil
}

// Limits returns the rate limits in force, with the bytes that ended connections have sent under each.
func (d *Datapath) Limits() map[uint64]limit.Limit {
	l := &d.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[uint64]limit.Limit, len(l.set)+len(l.paths))
	for _, list := range []map[uint64]limit.Limit{l.paths, l.set} {
		for key, x := range list {
			_ = d.maps.LimitEnded.Lookup(key, &x.Ended)
			out[key] = x
		}
	}
	return out
}

// memberSize is the length of what the iterator writes for one connection.
const memberSize = int(unsafe.Sizeof(abiLimitMember{}))

// ListsAllLimited reports whether Limited finds connections of all network namespaces, and not only of the calling thread's.
func (d *Datapath) ListsAllLimited() bool { return !d.limits.here }

// Limited returns the connections that are, or were, under a limit.
func (d *Datapath) Limited() ([]limit.Conn, error) {
	l := &d.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list == nil {
		return nil, l.err
	}
	r, err := l.list.Open()
	if err != nil {
		return nil, fmt.Errorf("open iterator over limited connections: %w", err)
	}
	defer r.Close()
	raw, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("list limited connections: %w", err)
	}
	conns := make([]limit.Conn, 0, len(raw)/memberSize)
	for ; len(raw) >= memberSize; raw = raw[memberSize:] {
		var m abiLimitMember
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&m)), memberSize), raw)
		conns = append(conns, limit.Conn{Cookie: m.Cookie, Rule: m.Rule, Path: m.Path, Own: limitedRate(m.Own), Given: limitedRate(m.Given),
			Since: int64(m.SinceNs), Sent: m.Sent, Unsent: m.Unsent})
	}
	if l.here { // where the kernel's hash table changes meanwhile, the TCP iterator can visit a connection twice
		slices.SortFunc(conns, func(a, b limit.Conn) int { return cmp.Compare(a.Cookie, b.Cookie) })
		conns = slices.CompactFunc(conns, func(a, b limit.Conn) bool { return a.Cookie == b.Cookie })
	}
	return conns, nil
}

// limitedRate is a rate of struct limit_member, in bytes per second; 0 is none.
func limitedRate(bytes uint64) uint64 {
	if bytes == math.MaxUint64 {
		return 0
	}
	return bytes
}

// Monotonic is the clock of limit.Conn.
func Monotonic() int64 { return monotonic() }

// WriteShares puts a division into force.
func (d *Datapath) WriteShares(r *limit.Result) error {
	l := &d.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	cookies := slices.Collect(maps.Keys(r.Shares))
	cookies = cookies[:min(len(cookies), int(d.maps.LimitShares.MaxEntries()))] // the others are fresh (limits.bpf.h)
	kept := make(map[uint64]struct{}, len(cookies))
	for _, c := range cookies {
		kept[c] = struct{}{}
	}
	for cookie := range l.given {
		if _, ok := kept[cookie]; ok {
			continue
		}
		if err := d.maps.LimitShares.Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete share: %w", err)
		}
		delete(l.given, cookie)
	}
	shares := make([]uint32, len(cookies))
	for i, c := range cookies {
		shares[i], l.given[c] = r.Shares[c], struct{}{}
	}
	if err := putBatch(d.maps.LimitShares, cookies, shares); err != nil {
		return fmt.Errorf("write shares: %w", err)
	}
	l.nextEpoch()
	for key, s := range r.Limits {
		l.bases[key] = uint32(min(s.Base*256, 1<<30))
		x, ok := l.set[key]
		if !ok {
			if x, ok = l.paths[key]; !ok {
				continue // it has ended meanwhile
			}
		}
		if err := d.writeLimit(key, x); err != nil {
			return err
		}
	}
	return nil
}

// FollowLimits brings the connections of the calling thread's network namespace in line with the
// limits in force: also those that are idle, and those whose rule had no limit when they began.
func (d *Datapath) FollowLimits() error {
	l := &d.limits
	l.mu.Lock()
	walk := l.walk
	l.mu.Unlock()
	if walk == nil {
		return l.err
	}
	return walkSockets(walk)
}
