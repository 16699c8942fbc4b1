package testenv

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// PodLink joins the network namespace at path, as a CNI plugin does it for a pod: a veth pair, the
// pod's end with a name and an address, the other end in the calling thread's namespace. It is for
// a test's own CNI plugin, which is a process without a testing.TB.
func PodLink(path, name, host string, address netip.Prefix) (mac net.HardwareAddr, err error) {
	err = inPod(path, func(ns *os.File, pod *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = host
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(ns.Fd())}); err != nil {
			return fmt.Errorf("add veth: %w", err)
		}
		outer, err := netlink.LinkByName(host)
		if err != nil {
			return fmt.Errorf("find veth: %w", err)
		}
		inner, err := pod.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find veth of the pod: %w", err)
		}
		mac = inner.Attrs().HardwareAddr
		ip := &netlink.Addr{IPNet: &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())}}
		return errors.Join(pod.AddrAdd(inner, ip), pod.LinkSetUp(inner), netlink.LinkSetUp(outer))
	})
	return mac, err
}

// RemovePodLink deletes the pair of PodLink. It is not an error if the link, or the namespace, is gone.
func RemovePodLink(path, name string) error {
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	return inPod(path, func(_ *os.File, pod *netlink.Handle) error {
		link, err := pod.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find veth of the pod: %w", err)
		}
		return pod.LinkDel(link)
	})
}

func inPod(path string, f func(ns *os.File, pod *netlink.Handle) error) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	pod, err := netlink.NewHandleAt(vnetns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer pod.Close()
	return f(ns, pod)
}
