package link

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/tcpilot/tcpilot/lab/topology"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// model is the program at the receiving end (bpf/model.bpf.c).
type model struct {
	objs   modelObjects
	end    *topology.End
	detach func() error
	how    string // the hook: tcx or clsact
}

// newModel attaches a model that does nothing yet to what arrives at end.
func newModel(end *topology.End) (*model, error) {
	m := &model{end: end}
	if err := loadModelObjects(&m.objs, nil); err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	err := m.attachTCX()
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = m.attachClsact() // before Linux 6.6
	}
	if err != nil {
		m.objs.Close()
		return nil, fmt.Errorf("attach model: %w", err)
	}
	return m, nil
}

func (m *model) attachTCX() error {
	return m.end.Host.Do(func() error {
		// The kernel looks the device index up in the thread's namespace.
		l, err := ebpflink.AttachTCX(ebpflink.TCXOptions{
			Interface: m.end.Index,
			Program:   m.objs.LabLink,
			Attach:    ebpf.AttachTCXIngress,
		})
		if err != nil {
			return err
		}
		m.how, m.detach = "tcx", l.Close
		return nil
	})
}

func (m *model) attachClsact() error {
	h := m.end.Host.Netlink()
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: m.end.Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
	if err := h.QdiscAdd(qdisc); err != nil {
		return fmt.Errorf("add clsact: %w", err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: m.end.Index,
			Parent:    netlink.HANDLE_MIN_INGRESS,
			Handle:    1,
			Protocol:  unix.ETH_P_ALL,
			Priority:  1,
		},
		Fd:           m.objs.LabLink.FD(),
		Name:         "tcpilot_lab_link",
		DirectAction: true,
	}
	if err := h.FilterAdd(filter); err != nil {
		return errors.Join(fmt.Errorf("add filter: %w", err), h.QdiscDel(qdisc))
	}
	m.how, m.detach = "clsact", func() error { return h.QdiscDel(qdisc) }
	return nil
}

// set replaces the configuration; each packet meets either the old or the new one.
func (m *model) set(c modelLinkConfig) error {
	if err := m.objs.LinkConfigs.Put(uint32(0), c); err != nil {
		return fmt.Errorf("configure model: %w", err)
	}
	return nil
}

// count reads the counters of all processors.
func (m *model) count() (sum Counters, err error) {
	var each []modelLinkCounters
	if err := m.objs.LinkCounts.Lookup(uint32(0), &each); err != nil {
		return sum, fmt.Errorf("read counters of model: %w", err)
	}
	for _, c := range each {
		sum.Passed += c.Passed
		sum.Aggregates += c.Aggregates
		sum.Lost += c.Lost
		sum.LostBurst += c.LostBurst
		sum.Policed += c.Policed
		sum.Overflowed += c.Overflowed
		sum.Failed += c.Failed
		sum.Marked += c.Marked
		sum.QueueMax = max(sum.QueueMax, c.QueueMax)
	}
	return sum, nil
}

func (m *model) close() error { return errors.Join(m.detach(), m.objs.Close()) }

// instant is the part of a Spec that makes no packet wait: loss and the policer.
func (s Spec) instant() modelLinkConfig {
	c := modelLinkConfig{
		Loss:     chance(s.Loss),
		ToBad:    chance(s.Bursts.ToBad),
		ToGood:   chance(s.Bursts.ToGood),
		LossBad:  chance(s.Bursts.LossBad),
		LossGood: chance(s.Bursts.LossGood),
	}
	if s.Bursts.ToBad == 0 { // a channel that an earlier Spec left in the bad state turns good with the next packet, and loses as in the good state until then
		c.ToGood, c.LossBad = always, c.LossGood
	}
	if p := s.Policer; p.Rate > 0 {
		c.PoliceCost = cost(p.Rate)
		c.PoliceBurst = uint64(float64(p.Burst) * 8e9 / float64(p.Rate))
	}
	return c
}

// delaying is the instant part and everything that makes packets wait, from the start of
// the epoch on; the emulator must hold each packet until its time.
func (s Spec) delaying(e epoch) modelLinkConfig {
	c := s.instant()
	c.Delay, c.Jitter = nanoseconds(s.Delay), nanoseconds(s.Jitter)
	c.Reorder = chance(s.Reorder)
	if s.Rate > 0 {
		room := s.Room()
		c.QueueBytes, c.QueuePackets = room.Bytes, room.Packets
		c.Ecn = s.ECN
	}
	c.Cost, c.Since, c.Served, c.Generation = e.cost, uint64(e.since), e.served, e.generation
	c.Hold = 1
	return c
}

// always is the chance of a certain event.
const always = 1 << 32

// chance is a share in units of 1/2^32.
func chance(share float64) uint64 { return uint64(math.Round(share * always)) }

// cost is the time of a byte at a rate in bit/s, in units of 1/2^20 ns; its relative
// error is 5e-7 at 1 Gbit/s and 6e-6 at 100 Gbit/s. 0 is no rate.
func cost(rate uint64) uint64 {
	if rate == 0 {
		return 0
	}
	return (8e9<<20 + rate/2) / rate
}

func nanoseconds(d time.Duration) uint64 { return uint64(d.Nanoseconds()) }
