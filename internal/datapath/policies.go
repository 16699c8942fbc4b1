package datapath

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// WritePolicies adds or replaces rows of the policy table. On an error some of the rows may
// have been written, each completely.
func (d *Datapath) WritePolicies(entries []path.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()

	known := d.ccs.n.Load()
	offset := wallOffset()
	keys := make([]abiPathKey, len(entries))
	values := make([]abiPathPolicy, len(entries))
	for i := range entries {
		var err error
		if keys[i], err = encodeKey(entries[i].Key); err != nil {
			return err
		}
		if values[i], err = encodePolicy(&entries[i], &d.ccs, offset); err != nil {
			return err
		}
		if entries[i].Policy.CountFlows {
			values[i].Flow = d.flows.row(entries[i].Rule, &keys[i]) // 0 if there is no room: not counted, no initial window is raised
		}
		if err := d.limitPath(values[i].Flow, pacedRate(&entries[i].Policy)); err != nil {
			return err
		}
	}
	// A policy must never name an arm that the runtime configuration does not have yet.
	if d.ccs.n.Load() != known {
		if err := d.putConfig(); err != nil {
			return err
		}
	}
	if err := putBatch(d.maps.PathPolicies, keys, values); err != nil {
		return fmt.Errorf("write %d policies: %w", len(entries), err)
	}
	for i := range entries {
		if !entries[i].Policy.CountFlows {
			if err := d.endCount(&keys[i]); err != nil {
				return err
			}
		}
		d.flows.note(values[i].Flow, &entries[i].Policy)
		if entries[i].Adopt {
			d.adoption.wanted.Add(1)
		}
	}
	return nil
}

// RoomForCC returns an error if policies could not name cc: the table of congestion controls
// is bounded, and only grows.
func (d *Datapath) RoomForCC(cc tcp.CC) error { return d.ccs.room(cc) }

// DeletePolicies removes rows; a row that does not exist is not an error. adopt: connections that they left without
// state are to be followed from now on.
func (d *Datapath) DeletePolicies(keys []path.Key, adopt bool) error {
	for _, k := range keys {
		key, err := encodeKey(k)
		if err != nil {
			return err
		}
		if err := d.maps.PathPolicies.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete policy of %s: %w", k, err)
		}
		d.mu.Lock()
		err = d.endCount(&key)
		d.mu.Unlock()
		if err != nil {
			return err
		}
	}
	if adopt {
		d.adoption.wanted.Add(1)
	}
	return nil
}

// endCount ends the count and the pacing rate of a path whose connections are not counted any more. d.mu must be locked.
func (d *Datapath) endCount(k *abiPathKey) error {
	if row := d.flows.release(k); row != 0 {
		return d.limitPath(row, 0)
	}
	return nil
}

// DeletePoliciesExcept removes every row for whose class keep returns false: those of an
// earlier process or of earlier rules.
func (d *Datapath) DeletePoliciesExcept(keep func(class uint32) bool) error {
	if err := deleteWhere(d.maps.PathPolicies, func(k *abiPathKey) bool { return !keep(k.Class & pathClass) }); err != nil {
		return fmt.Errorf("delete old policies: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, row := range d.flows.releaseExcept(keep) {
		if err := d.limitPath(row, 0); err != nil {
			return err
		}
	}
	return nil
}

// SetLease lets the programs act for the given time from now. If the lease is not renewed, they
// do nothing for new connections after that. Because it is called periodically, it also checks
// whether the kernel skips runs of the program at the end of connections.
func (d *Datapath) SetLease(lease time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spare == nil && d.report != nil && d.missedEnds() > 0 {
		d.trySpare(time.Now())
	}
	before := d.config.LeaseNs
	d.config.LeaseNs = uint64(monotonic() + int64(lease))
	if err := d.putConfig(); err != nil {
		d.config.LeaseNs = before
		return err
	}
	if uint64(monotonic()) >= before { // the programs saw no connection begin between the two leases
		d.adoption.wanted.Add(1)
	}
	return nil
}

// Settings are what the programs need beside rules and policies.
type Settings struct {
	// Fields has the bit 1<<f for every field that some rule sets, and Adapted for every field that some rule
	// adapts; the programs answer only the request ops that these need.
	Fields, Adapted uint64
	// Yields are the fields that network namespaces own.
	Yields []Yield
	// Inherited are the default congestion controls that network namespaces have from their
	// creation, at most MaxInherited. If a namespace has another one, its owner chose that,
	// and it is not replaced. Empty: every default may be replaced.
	Inherited []tcp.CC
	// Interval is the age from which live connections are sampled; 0 is never.
	Interval time.Duration
	// ReportRate is about how many ends of connections are reported a second at most. If there
	// are more, each sample stands for several: twice as many ends, half the samples, down to a
	// quarter of ReportRate; and of connections that get nothing, only those that will be reported
	// have state. 0 is all.
	ReportRate uint32
}

// Yield is what one network namespace owns. Only rules that name the namespace, or a
// cgroup, override it.
type Yield struct {
	NetNS  uint64 // cookie
	Fields uint64 // bit 1<<f for field f
	CC     bool
}

// MaxInherited bounds Settings.Inherited.
const MaxInherited = int(abiAbiLimitsMAX_INHERITED)

const yieldCC = 1 << 63 // YIELD_CC of bpf/include/abi.h

// SetSettings puts s into force.
func (d *Datapath) SetSettings(s Settings) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	requests := requestMask(s.Fields, s.Adapted)
	d.listeners.changed(d.config.Requests, requests)
	d.config.Requests = requests
	union, err := d.putYields(s.Yields)
	if err != nil {
		return err
	}
	d.config.Yield, d.config.NumInherited = union, uint32(copy(d.config.Inherited[:], inherited(s.Inherited)))
	if s.Interval > 0 && d.config.IntervalNs == 0 { // until now, walks adopted none
		d.adoption.wanted.Add(1)
	}
	if err := d.followLowat(s.Fields&(1<<tcp.NotsentLowat) != 0); err != nil {
		return err
	}
	d.config.IntervalNs = uint64(max(0, s.Interval))
	d.config.ReportRate = s.ReportRate
	return d.putConfig()
}

func inherited(ccs []tcp.CC) (names [][abiAbiLimitsCC_NAME]uint8) {
	for _, cc := range ccs {
		names = append(names, cc)
	}
	return names
}

// putYields writes what each namespace owns, and returns the union.
func (d *Datapath) putYields(yields []Yield) (union uint64, err error) {
	keep := map[uint64]bool{}
	for _, y := range yields {
		mask := y.Fields & (1<<tcp.NumFields - 1)
		if y.CC {
			mask |= yieldCC
		}
		if mask == 0 {
			continue
		}
		if err := d.maps.NetnsYields.Put(y.NetNS, mask); err != nil {
			return 0, fmt.Errorf("write what network namespace %d owns: %w", y.NetNS, err)
		}
		keep[y.NetNS] = true
		union |= mask
	}
	if err := deleteWhere(d.maps.NetnsYields, func(cookie *uint64) bool { return !keep[*cookie] }); err != nil {
		return 0, fmt.Errorf("delete what network namespaces owned: %w", err)
	}
	return union, nil
}

func (d *Datapath) putConfig() error {
	d.config.NumCc = d.ccs.n.Load()
	d.config.WallOffsetNs = uint64(wallOffset())
	for i := range d.config.NumCc {
		d.config.Cc[i] = d.ccs.names[i]
	}
	if err := d.maps.RuntimeConfig.Put(uint32(0), &d.config); err != nil {
		return fmt.Errorf("write runtime configuration: %w", err)
	}
	return nil
}
