package datapath

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/progstats"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Counters are sums over all CPUs since the maps were made: they outlive the
// daemon.
type Counters struct {
	Samples     uint64 // submitted to the ring
	SamplesLost uint64 // the ring was full
	Missed      uint64 // upper bound on ends of connections at which the kernel ran no program, since this process started
	SamplesBad  uint64 // records that could not be decoded, since this process started
	// Decisions counts connections by what they got; one that got a policy also counts under
	// what was done with its congestion control.
	Decisions   map[string]uint64
	CCErrors    map[tcp.CC]uint64    // setsockopt errors by congestion control
	FieldErrors map[tcp.Field]uint64 // and by field; zeros are left out
	Replies     uint64               // request ops answered
	Untracked   uint64               // connections without room for their state
	Slots       uint64               // connections whose state is in a slot
	Storages    uint64               // connections whose state is in socket storage from the beginning
	Forgotten   uint64               // connections whose socket began another one before a sample was sent
	Ends        uint64               // of connections that a sample may stand for; of some, their beginning
	Thinned     uint64               // connections not reported: samples of others stand for them
	NotFollowed uint64               // connections without state at their beginning; also a decision
	Backwards   uint64               // samples dropped because a counter was less than before
	Peer        PeerCounters
	Events      []Event
}

// PeerCounters count what happened with the peer option.
type PeerCounters struct {
	Sent    uint64 // SYNs and SYN-ACKs with the option
	Seen    uint64 // SYNs and SYN-ACKs received with it
	Resent  uint64 // connections whose SYN was sent again without it
	Omitted uint64 // connections that began without it, because the host had not answered a SYN with it
}

// Event counts one kind of callback of a class's connections: of those that are watched, or whose timeouts
// are answered.
type Event struct {
	Class uint32
	Name  string // rto, retransmit, state, rto-answered
	Count uint64
}

// decisionNames are the keys of Counters.Decisions, by counter of the programs.
var decisionNames = map[abiCounter]string{
	abiCounterCOUNT_LEFT:         "left-alone",
	abiCounterCOUNT_NO_POLICY:    "no-policy",
	abiCounterCOUNT_EXPIRED:      "lease-expired",
	abiCounterCOUNT_NOT_FOLLOWED: "not-followed",
	abiCounterCOUNT_LOSSY:        "followed-lossy",
	abiCounterCOUNT_HOLD_OUT:     "hold-out",
	abiCounterCOUNT_SET:          "policy",
	abiCounterCOUNT_APP_CC:       "app-chose",
	abiCounterCOUNT_CC_SET:       "cc-set",
	abiCounterCOUNT_CC_SAME:      "cc-same",
	abiCounterCOUNT_CC_FAILED:    "cc-failed",
	abiCounterCOUNT_CC_DEFAULT:   "cc-default",
	abiCounterCOUNT_SWITCHED:     "switched",
	abiCounterCOUNT_RESUMED:      "resumed",
	abiCounterCOUNT_RETREATED:    "retreated",
}

// Counters reads all counters.
func (d *Datapath) Counters() (*Counters, error) {
	c := &Counters{Decisions: map[string]uint64{}, SamplesBad: d.badSamples.Load()}
	n, err := d.counterSums()
	if err != nil {
		return nil, err
	}
	for i, name := range decisionNames {
		c.Decisions[name] = n[i]
	}
	c.Decisions["no-rule"] = n[abiCounterCOUNT_NO_RULE_OUTGOING] + n[abiCounterCOUNT_NO_RULE_INCOMING]
	c.Samples, c.SamplesLost = n[abiCounterCOUNT_SAMPLES], n[abiCounterCOUNT_SAMPLES_LOST]
	d.mu.Lock()
	c.Missed = d.missedEnds()
	d.mu.Unlock()
	c.Replies = n[abiCounterCOUNT_REPLIES]
	c.Untracked, c.Forgotten = n[abiCounterCOUNT_UNTRACKED], n[abiCounterCOUNT_FORGOTTEN]
	c.Ends = n[abiCounterCOUNT_ENDS]
	c.NotFollowed, c.Backwards = n[abiCounterCOUNT_NOT_FOLLOWED], n[abiCounterCOUNT_BACKWARDS]
	c.Thinned = n[abiCounterCOUNT_THINNED] + c.NotFollowed
	c.Peer = PeerCounters{
		Sent: n[abiCounterCOUNT_PEER_SENT], Seen: n[abiCounterCOUNT_PEER_SEEN],
		Resent: n[abiCounterCOUNT_PEER_RESENT], Omitted: n[abiCounterCOUNT_PEER_BLOCKED],
	}
	c.Slots, c.Storages = n[abiCounterCOUNT_SLOT], n[abiCounterCOUNT_STORAGE]
	return c, errors.Join(d.readFailures(c), d.readEvents(c))
}

// counterSums returns the programs' counters, by number.
func (d *Datapath) counterSums() (n [abiCounterNUM_COUNTERS]uint64, err error) {
	cpus, err := mapMemory[abiCounters](d.maps.Counters, unix.PROT_READ)
	if err != nil {
		return n, fmt.Errorf("map counters: %w", err)
	}
	for i := range n {
		for cpu := range cpus {
			n[i] += atomic.LoadUint64(&cpus[cpu].N[i])
		}
	}
	if err := unmapMemory(cpus); err != nil {
		return n, fmt.Errorf("unmap counters: %w", err)
	}
	return n, nil
}

func (d *Datapath) readFailures(c *Counters) error {
	c.FieldErrors = map[tcp.Field]uint64{}
	for f := range tcp.NumFields {
		v, err := perCPUSum(d.maps.SetFailures, uint32(f))
		if err != nil {
			return fmt.Errorf("read failures of %s: %w", f, err)
		}
		if v > 0 {
			c.FieldErrors[f] = v
		}
	}
	var err error
	c.CCErrors, err = d.CCErrors()
	return err
}

// CCErrors returns how often the kernel refused each congestion control that was
// ever in a policy.
func (d *Datapath) CCErrors() (map[tcp.CC]uint64, error) {
	out := map[tcp.CC]uint64{}
	for i := range d.ccs.n.Load() {
		v, err := perCPUSum(d.maps.SetFailures, uint32(tcp.NumFields)+i)
		if err != nil {
			return nil, fmt.Errorf("read failures of %s: %w", d.ccs.names[i], err)
		}
		out[d.ccs.names[i]] = v
	}
	return out, nil
}

// ClassCount is the number of connections that were put into a class.
type ClassCount struct{ Outgoing, Incoming uint64 }

const maxClassCounts = uint32(abiAbiLimitsMAX_CLASS_COUNTS)

// ClassCounts returns the counts of classes since their rules came into force in this process. Class 0 is connections without a rule, since
// the programs were loaded.
// Classes whose ids are equal modulo 1024 share a place. Two of them are in force together only if one rule has stayed the same while others
// were changed that often.
func (d *Datapath) ClassCounts(classes []uint32) ([]ClassCount, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts, err := d.placeCounts(classes)
	for i := range counts {
		before := d.begun[classes[i]]
		counts[i].Outgoing -= before.Outgoing
		counts[i].Incoming -= before.Incoming
	}
	return counts, err
}

// beginCounts returns what d.begun is to be with a table of the given classes: of new ones, what their places have counted. d.mu must be locked.
func (d *Datapath) beginCounts(classes []class.Class) (map[uint32]ClassCount, error) {
	ids := make([]uint32, len(classes))
	for i, c := range classes {
		ids[i] = c.ID
	}
	counts, err := d.placeCounts(ids)
	if err != nil {
		return nil, err
	}
	begun := make(map[uint32]ClassCount, len(ids))
	for i, id := range ids {
		before, known := d.begun[id]
		if !known {
			before = counts[i]
		}
		begun[id] = before
	}
	return begun, nil
}

// placeCounts returns what the places of classes have counted.
func (d *Datapath) placeCounts(classes []uint32) ([]ClassCount, error) {
	cpus, err := mapMemory[abiCounters](d.maps.Counters, unix.PROT_READ)
	if err != nil {
		return nil, fmt.Errorf("map counters: %w", err)
	}
	out := make([]ClassCount, len(classes))
	for i, id := range classes {
		for cpu := range cpus {
			c := &cpus[cpu]
			outgoing, incoming := &c.Classes[id%maxClassCounts].Outgoing, &c.Classes[id%maxClassCounts].Incoming
			if id == 0 {
				outgoing, incoming = &c.N[abiCounterCOUNT_NO_RULE_OUTGOING], &c.N[abiCounterCOUNT_NO_RULE_INCOMING]
			}
			out[i].Outgoing += atomic.LoadUint64(outgoing)
			out[i].Incoming += atomic.LoadUint64(incoming)
		}
	}
	return out, unmapMemory(cpus)
}

var eventNames = map[uint32]string{
	unix.BPF_SOCK_OPS_RTO_CB: "rto", unix.BPF_SOCK_OPS_RETRANS_CB: "retransmit", unix.BPF_SOCK_OPS_STATE_CB: "state",
	uint32(abiEventEVENT_ANSWERED): "rto-answered",
}

func (d *Datapath) readEvents(c *Counters) error {
	return d.eachEvent(func(k abiEventKey, perCPU []uint64) {
		e := Event{Class: k.Class, Name: eventNames[k.Op]}
		for _, v := range perCPU {
			e.Count += v
		}
		c.Events = append(c.Events, e)
	})
}

func (d *Datapath) eachEvent(f func(k abiEventKey, perCPU []uint64)) error {
	var k abiEventKey
	var perCPU []uint64
	it := d.maps.Events.Iterate()
	for it.Next(&k, &perCPU) {
		f(k, perCPU)
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read events: %w", err)
	}
	return nil
}

// trimEvents removes the counts of classes that are in no bank, if more than half of the map is in use: in a full one, events of new
// classes would not be counted.
func (d *Datapath) trimEvents() error {
	var keys []abiEventKey
	if err := d.eachEvent(func(k abiEventKey, _ []uint64) { keys = append(keys, k) }); err != nil {
		return err
	}
	if len(keys) <= int(d.maps.Events.MaxEntries())/2 {
		return nil
	}
	kept, err := d.classIDs()
	if err != nil {
		return err
	}
	for _, k := range keys {
		if kept[k.Class] {
			continue
		}
		if err := d.maps.Events.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete events of class %d: %w", k.Class, err)
		}
	}
	return nil
}

func perCPUSum(m *ebpf.Map, key any) (sum uint64, err error) {
	var perCPU []uint64
	if err := m.Lookup(key, &perCPU); err != nil {
		return 0, err
	}
	for _, v := range perCPU {
		sum += v
	}
	return sum, nil
}

// hooks are the programs that are always attached.
func (o *sockopsPrograms) hooks() []*ebpf.Program {
	return []*ebpf.Program{o.TcpilotSockops, o.TcpilotReport, o.TcpilotReset, o.TcpilotError, o.TcpilotUndone}
}

// Programs lists the programs in force, with their run-time statistics.
func (d *Datapath) Programs() ([]progstats.Stats, error) {
	progs := d.objs.hooks()
	if d.live != nil {
		progs = append(progs, d.live.prog)
	}
	d.mu.Lock()
	if d.config.Limits != 0 && d.limits.err == nil {
		progs = append(progs, d.limits.objs.TcpilotLimited, d.limits.objs.TcpilotLimitWalk)
	}
	if d.spare != nil {
		progs = append(progs, d.objs.TcpilotSpare)
	}
	d.mu.Unlock()
	var out []progstats.Stats
	for _, p := range progs {
		info, err := p.Info()
		if err != nil {
			return nil, fmt.Errorf("read program info: %w", err)
		}
		id, _ := info.ID()
		st, err := p.Stats()
		if err != nil {
			return nil, fmt.Errorf("read program statistics: %w", err)
		}
		out = append(out, progstats.Stats{Name: info.Name, ID: uint32(id), RunCount: st.RunCount, RunTime: st.Runtime})
	}
	return out, nil
}
