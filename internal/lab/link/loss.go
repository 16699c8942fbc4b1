package link

import (
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Loss drops packets that arrive at one end of a wire: it acts on the direction
// towards that end, and on no other.
type Loss struct {
	objs   lossObjects
	end    *topology.End
	detach func() error
	// How says by which hook the program is attached: tcx or clsact.
	How string
}

// NewLoss attaches loss of probability 0 to packets arriving at end.
func NewLoss(end *topology.End) (*Loss, error) {
	l := &Loss{end: end}
	if err := loadLossObjects(&l.objs, nil); err != nil {
		return nil, fmt.Errorf("load loss program: %w", err)
	}
	err := l.attachTCX()
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = l.attachClsact() // before Linux 6.6
	}
	if err != nil {
		l.objs.Close()
		return nil, fmt.Errorf("attach loss to %s of %s: %w", end.Device, end.Host.Name, err)
	}
	return l, nil
}

func (l *Loss) attachTCX() error {
	return l.end.Host.Do(func() error {
		// The device index is of the thread's namespace.
		lk, err := ebpflink.AttachTCX(ebpflink.TCXOptions{
			Interface: l.end.Index,
			Program:   l.objs.LabLoss,
			Attach:    ebpf.AttachTCXIngress,
		})
		if err != nil {
			return err
		}
		l.How, l.detach = "tcx", lk.Close
		return nil
	})
}

func (l *Loss) attachClsact() error {
	h := l.end.Host.Netlink()
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.end.Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
	if err := h.QdiscAdd(qdisc); err != nil {
		return fmt.Errorf("add clsact: %w", err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: l.end.Index,
			Parent:    netlink.HANDLE_MIN_INGRESS,
			Handle:    1,
			Protocol:  unix.ETH_P_ALL,
			Priority:  1,
		},
		Fd:           l.objs.LabLoss.FD(),
		Name:         "tcpilot_lab_loss",
		DirectAction: true,
	}
	if err := h.FilterAdd(filter); err != nil {
		return errors.Join(fmt.Errorf("add filter: %w", err), h.QdiscDel(qdisc))
	}
	l.How, l.detach = "clsact", func() error { return h.QdiscDel(qdisc) }
	return nil
}

// Set changes the probability, 0 to 1, that a packet is dropped.
func (l *Loss) Set(probability float64) error {
	if math.IsNaN(probability) || probability < 0 || probability > 1 {
		return fmt.Errorf("set loss: probability %v is not in 0 to 1", probability)
	}
	threshold := uint64(math.Round(probability * (1 << 32)))
	if err := l.objs.LossThreshold.Put(uint32(0), threshold); err != nil {
		return fmt.Errorf("set loss: %w", err)
	}
	return nil
}

// Counters count packets since the loss was attached.
type Counters struct {
	Passed, Dropped uint64
	// Aggregates of several segments, dropped or passed as one: loss is only
	// faithful per packet while this is 0.
	Aggregates uint64
}

// Loss is the share of packets that was dropped.
func (c Counters) Loss() float64 { return float64(c.Dropped) / float64(max(1, c.Dropped+c.Passed)) }

// Sub is what was counted since before.
func (c Counters) Sub(before Counters) Counters {
	return Counters{c.Passed - before.Passed, c.Dropped - before.Dropped, c.Aggregates - before.Aggregates}
}

// Counters reads the counters.
func (l *Loss) Counters() (sum Counters, err error) {
	var perCPU []lossLossCounters
	if err := l.objs.LossCount.Lookup(uint32(0), &perCPU); err != nil {
		return sum, fmt.Errorf("read loss counters: %w", err)
	}
	for _, c := range perCPU {
		sum.Passed += c.Passed
		sum.Dropped += c.Dropped
		sum.Aggregates += c.Aggregates
	}
	return sum, nil
}

// Close takes the loss off the wire.
func (l *Loss) Close() error { return errors.Join(l.detach(), l.objs.Close()) }
