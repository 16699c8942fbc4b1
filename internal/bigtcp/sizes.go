package bigtcp

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/poddevice"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// Size is the largest packet that is asked for, in bytes. The kernel's limit is 512 KB (GSO_MAX_SIZE). A
// packet of 192 KB fits into the page fragments of an skb on all kernels (MAX_SKB_FRAGS is at least 17), even
// if these have only 12 KB each, and it can carry an answer of 80 KB whole.
const Size = 192 << 10

// legacy is the largest packet without BIG TCP, in bytes (GSO_LEGACY_MAX_SIZE).
const legacy = 65536

// ErrIgnored says that the kernel accepted sizes, but did not set them.
var ErrIgnored = errors.New("the kernel accepted other sizes of packets, but does not have them: BIG TCP for IPv4 and IPv6 needs Linux 6.3")

// jumbo is the length of the extension header that the kernel puts into IPv6 packets above 64 KB, and takes out when it
// segments them (struct hop_jumbo_hdr), in bytes.
const jumbo = 8

// minMTU is the least MTU of IPv6, in bytes (IPV6_MIN_MTU).
const minMTU = 1280

// Values are the sizes of packets of a device, and its MTU of IPv6 (net.ipv6.conf.DEVICE.mtu), in bytes. MTU6 is 0 if
// the device has no IPv6, or if it is not to be set.
type Values struct {
	rtnetlink.Sizes
	MTU6 uint32 `json:"ipv6_mtu,omitempty"`
}

// Of returns v with those values only that others has, to compare the two.
func (v Values) Of(others Values) Values {
	if others.MTU6 == 0 {
		v.MTU6 = 0
	}
	return v
}

// Read reads a device of the calling thread's network namespace.
func Read(index int) (d rtnetlink.Link, v Values, err error) {
	if d, err = rtnetlink.LinkByIndex(index); err != nil {
		return d, v, err
	}
	v.Sizes = d.Sizes
	text, err := sysctl.Read(mtuOf(d.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return d, v, nil
	}
	if err == nil {
		_, err = fmt.Sscan(text, &v.MTU6)
	}
	return d, v, err
}

// mtuOf names a sysctl.
func mtuOf(device string) string {
	return "net.ipv6.conf." + sysctl.Part(device) + ".mtu"
}

// Goal is what a device of a pod, or one that leads to other hosts, is to have.
type Goal struct {
	Size uint32 // largest packet, in bytes
	MTU6 uint32 // greatest MTU of IPv6, in bytes (see Path.PodMTU); 0: any
	// Forwards says that the host forwards IPv6 packets that arrive at the device. The kernel refuses to forward packets
	// above 64 KB whose segments fill the MTU, because it counts the extension header that they do not have on the wire
	// (ip6_pkt_too_big, skb_gso_validate_network_len). So GRO of IPv6 must not make such packets.
	Forwards bool
}

// Of returns the values that a device with the values v gets for the goal. Larger sizes stay.
func (g Goal) Of(v Values) Values {
	to := Values{rtnetlink.Sizes{GSO: max(v.GSO, g.Size), GRO: max(v.GRO, g.Size), GSO4: max(v.GSO4, g.Size), GRO4: max(v.GRO4, g.Size)}, v.MTU6}
	if g.Forwards {
		to.GRO = v.GRO
	}
	if g.MTU6 != 0 && v.MTU6 != 0 {
		to.MTU6 = min(v.MTU6, g.MTU6)
	}
	return to
}

// Set gives a device of the calling thread's network namespace its values, and reads them back. It lowers the MTU
// before it sets the sizes, and raises it after that, so that the MTU is never too large for packets above 64 KB.
func Set(index int, v Values) error {
	d, now, err := Read(index)
	if err != nil {
		return fmt.Errorf("read sizes of packets: %w", err)
	}
	setMTU := func(wanted bool) error {
		if !wanted || v.MTU6 == 0 {
			return nil
		}
		return sysctl.Write(mtuOf(d.Name), strconv.FormatUint(uint64(v.MTU6), 10))
	}
	if err := setMTU(v.MTU6 < now.MTU6); err != nil {
		return fmt.Errorf("set MTU: %w", err)
	}
	if err := rtnetlink.SetSizes(index, v.Sizes); err != nil {
		return fmt.Errorf("set sizes of packets: %w", err)
	}
	if err := setMTU(v.MTU6 > now.MTU6); err != nil {
		return fmt.Errorf("set MTU: %w", err)
	}
	if _, now, err = Read(index); err != nil {
		return fmt.Errorf("read back sizes of packets: %w", err)
	}
	if now = now.Of(v); now != v {
		return fmt.Errorf("%w (asked for %+v, read %+v)", ErrIgnored, v, now)
	}
	return nil
}

// Restored returns the values that a device is to have when a change is taken back: those from before the
// change. Values that somebody else has changed meanwhile stay.
func Restored(now, given, before Values) Values {
	one := func(now, given, before uint32) uint32 {
		if now == given {
			return before
		}
		return now
	}
	return Values{rtnetlink.Sizes{GSO: one(now.GSO, given.GSO, before.GSO), GRO: one(now.GRO, given.GRO, before.GRO),
		GSO4: one(now.GSO4, given.GSO4, before.GSO4), GRO4: one(now.GRO4, given.GRO4, before.GRO4)}, one(now.MTU6, given.MTU6, before.MTU6)}
}

// CheckPair returns why a pod's pair of devices cannot have packets of Path.Size; nil if it can.
func (p *Path) CheckPair(host, inside rtnetlink.Link) error {
	if host.Master != 0 {
		master, err := rtnetlink.LinkByIndex(host.Master)
		if err != nil {
			return fmt.Errorf("find the device that %s belongs to: %w", host.Name, err)
		}
		if slices.Contains(unfit, master.Kind) { // not a VRF
			return fmt.Errorf("its device on the host belongs to %s, of the kind %s, whose other devices would segment each packet again", master.Name, master.Kind)
		}
	}
	for _, d := range []rtnetlink.Link{host, inside} {
		if d.MaxSize < p.Size {
			return fmt.Errorf("device %s has packets of at most %d bytes", d.Name, d.MaxSize)
		}
	}
	if p.PodMTU(host) < minMTU {
		return fmt.Errorf("the MTU of device %s, or of those by which packets leave, is too small for IPv6", host.Name)
	}
	return nil
}

// Try returns why this kernel does not support BIG TCP; nil if it does. It sets the sizes of a pair of devices in a
// namespace that ends with the attempt.
func Try() error {
	return netns.InNew(func() error {
		if err := poddevice.Make(pod.Veth); err != nil {
			return err
		}
		d, err := rtnetlink.LinkByName("veth0") // the name that the kernel gives the first one
		if err != nil {
			return fmt.Errorf("find the new device: %w", err)
		}
		if err := checkSize(d); err != nil {
			return err
		}
		_, v, err := Read(d.Index)
		if err != nil {
			return err
		}
		return Set(d.Index, Goal{Size: Size}.Of(v))
	})
}
