package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoNetem says that this kernel cannot delay packets with netem.
var ErrNoNetem = errors.New("this kernel has no netem (CONFIG_NET_SCH_NETEM)")

// Rate is the shape of what leaves one end of a wire.
type Rate struct {
	BitsPerSecond uint64
	// Burst is the bucket in bytes; 0 is the greater of 10 ms at the rate, for
	// the timer, and 16 KiB.
	Burst uint32
	// Queue is the room for waiting packets in bytes; 0 is 50 ms at the rate, at
	// least 64 KiB.
	Queue uint32
}

// SetRate limits what leaves end by tbf, replacing an earlier limit.
func SetRate(end *topology.End, r Rate) error {
	if r.BitsPerSecond < 8 {
		return fmt.Errorf("set rate: %d bit/s is too little", r.BitsPerSecond)
	}
	bytes := r.BitsPerSecond / 8
	if r.Burst == 0 {
		r.Burst = uint32(max(bytes/100, 16<<10))
	}
	if r.Queue == 0 {
		r.Queue = uint32(max(bytes/20, 64<<10))
	}
	q := &netlink.Tbf{
		QdiscAttrs: rootQdisc(end),
		Rate:       bytes,
		Limit:      r.Queue + r.Burst,
		// The kernel wants the burst as the time to send it, in its clock's ticks.
		Buffer: netlink.Xmittime(bytes, r.Burst),
	}
	if err := end.Host.Netlink().QdiscReplace(q); err != nil {
		return fmt.Errorf("set rate of %s of %s: %w", end.Device, end.Host.Name, err)
	}
	return nil
}

// SetDelay delays what leaves end by netem, for good. Where the kernel has no
// netem the error is ErrNoNetem.
func SetDelay(end *topology.End, d time.Duration) error {
	q := netlink.NewNetem(rootQdisc(end), netlink.NetemQdiscAttrs{
		Latency: uint32(d.Microseconds()),
		Limit:   100_000, // packets; netem's 1000 would drop at 100 ms and 120 Mbit/s
	})
	err := end.Host.Netlink().QdiscReplace(q)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		err = ErrNoNetem
	}
	if err != nil {
		return fmt.Errorf("set delay of %s of %s: %w", end.Device, end.Host.Name, err)
	}
	return nil
}

// Unshape takes the rate or the delay off what leaves end.
func Unshape(end *topology.End) error {
	err := end.Host.Netlink().QdiscDel(&netlink.GenericQdisc{QdiscAttrs: rootQdisc(end)})
	// Where there is none the kernel finds the handle (EINVAL) or the qdisc wrong.
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unshape %s of %s: %w", end.Device, end.Host.Name, err)
	}
	return nil
}

// SetMTU sets the MTU of both ends of a wire.
func SetMTU(mtu int, ends ...*topology.End) error {
	for _, e := range ends {
		h := e.Host.Netlink()
		dev, err := h.LinkByIndex(e.Index)
		if err == nil {
			err = h.LinkSetMTU(dev, mtu)
		}
		if err != nil {
			return fmt.Errorf("set MTU of %s of %s: %w", e.Device, e.Host.Name, err)
		}
	}
	return nil
}

func rootQdisc(end *topology.End) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{LinkIndex: end.Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
}
