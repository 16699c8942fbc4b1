package link

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/tcpilot/tcpilot/lab/topology"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// feature is an offload, by the ethtool commands that read and write it
// (include/uapi/linux/ethtool.h).
type feature struct{ get, set uint32 }

var (
	tso = feature{0x1e, 0x1f} // segmentation of TCP
	gso = feature{0x23, 0x24} // segmentation of all
	gro = feature{0x2b, 0x2c} // the receiver's reassembly
)

// offloads are those of one direction: segmentation where packets leave,
// reassembly where they arrive.
type offloads struct {
	all      []offload
	from     *topology.End
	segments uint32 // how many an aggregate could have before
	off      bool
}

type offload struct {
	end *topology.End
	feature
	before uint32
}

func readOffloads(e Ends) (*offloads, error) {
	o := &offloads{
		all:  []offload{{end: e.From, feature: tso}, {end: e.From, feature: gso}, {end: e.To, feature: gro}},
		from: e.From,
	}
	dev, err := e.From.Host.Netlink().LinkByIndex(e.From.Index)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", e.From.Device, err)
	}
	o.segments = dev.Attrs().GSOMaxSegs
	for i, one := range o.all {
		if o.all[i].before, err = ethtool(one.end, one.get, 0); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// set restores the state from before, or turns them off.
func (o *offloads) set(asBefore bool) error {
	if asBefore {
		return o.restore()
	}
	if o.off {
		return nil
	}
	o.off = true
	for _, one := range o.all {
		if _, err := ethtool(one.end, one.feature.set, 0); err != nil {
			return err
		}
	}
	return boundAggregates(o.from, 1)
}

func (o *offloads) restore() error {
	if !o.off {
		return nil
	}
	o.off = false
	errs := []error{boundAggregates(o.from, o.segments)}
	for _, one := range o.all {
		_, err := ethtool(one.end, one.feature.set, one.before)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// boundAggregates limits how many segments an aggregate that leaves an end may have.
// Larger packets are split, whatever their source. Turning the features off is not enough: it
// leaves aggregates of UDP_SEGMENT whole (gso_features_check).
func boundAggregates(e *topology.End, segments uint32) error {
	device := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: e.Index, Name: e.Device}}
	if err := e.Host.Netlink().LinkSetGSOMaxSegs(device, int(segments)); err != nil {
		return fmt.Errorf("limit segments per packet on %s of %s: %w", e.Device, e.Host.Name, err)
	}
	return nil
}

// OffloadsOff turns segmentation and receive offloads of these ends off, so
// that one packet on the wire is one segment. Shape does this for its direction;
// OffloadsOff is for wires without a Direction.
func OffloadsOff(ends ...*topology.End) error {
	for _, e := range ends {
		for _, f := range []feature{tso, gso, gro} {
			if _, err := ethtool(e, f.set, 0); err != nil {
				return err
			}
		}
		if err := boundAggregates(e, 1); err != nil {
			return err
		}
	}
	return nil
}

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct {
	cmd  uint32
	data uint32
}

// ifreqData is struct ifreq with its ifr_data member.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [40 - unix.IFNAMSIZ - unsafe.Sizeof(uintptr(0))]byte // sizeof(struct ifreq) is 40
}

func ethtool(e *topology.End, cmd, data uint32) (uint32, error) {
	v := ethtoolValue{cmd: cmd, data: data}
	err := e.Host.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		defer unix.Close(fd)
		req := ifreqData{data: unsafe.Pointer(&v)}
		copy(req.name[:unix.IFNAMSIZ-1], e.Device)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("change offloads of %s of %s: %w", e.Device, e.Host.Name, err)
	}
	return v.data, nil
}
