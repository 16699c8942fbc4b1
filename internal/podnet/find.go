package podnet

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// Find describes the interface of a name in the pod's network namespace (ns, a path), without its
// addresses. It is zero if there is none.
func Find(ns, name string) (l pod.Link, err error) {
	inside, err := open(ns)
	if err != nil {
		return l, err
	}
	defer inside.Close()
	link, err := inside.LinkByName(name)
	if isNotFound(err) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("find interface %s of the pod: %w", name, err)
	}
	l.Index, l.Device = link.Attrs().Index, deviceOf(link)
	if l.Device == pod.OtherDevice {
		return l, nil // IFLA_LINK of a macvlan is the device below it, not a peer
	}
	atHost, err := inside.peerIsAt(netns.Own, link)
	if err != nil {
		return l, fmt.Errorf("find the other end of interface %s of the pod: %w", name, err)
	}
	if atHost {
		l.HostIndex = link.Attrs().ParentIndex
	}
	return l, nil
}

func deviceOf(link netlink.Link) pod.Device {
	switch d := pod.Device(link.Type()); d {
	case pod.Veth, pod.Netkit:
		return d
	}
	return pod.OtherDevice
}

// handle is a netlink socket in a network namespace.
type handle struct {
	*netlink.Handle
	ns *os.File
}

func open(path string) (*handle, error) {
	ns, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	h, err := netlink.NewHandleAt(vnetns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("open netlink in network namespace %s: %w", path, err)
	}
	return &handle{h, ns}, nil
}

func (h *handle) Close() {
	h.Handle.Close()
	h.ns.Close()
}

// peerIsAt reports whether the other end of a pair is in the namespace at path. The kernel gives the
// other end's namespace as an id that is valid in the namespace of the handle (IFLA_LINK_NETNSID);
// without the attribute, both ends are in one namespace.
func (h *handle) peerIsAt(path string, link netlink.Link) (bool, error) {
	a := link.Attrs()
	if a.NetNsID < 0 || a.ParentIndex == 0 {
		return false, nil
	}
	ns, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer ns.Close()
	id, err := h.GetNetNsIdByFd(int(ns.Fd()))
	if err != nil {
		return false, fmt.Errorf("read id of network namespace: %w", err)
	}
	return id == a.NetNsID, nil
}

func isNotFound(err error) bool { return errors.As(err, &netlink.LinkNotFoundError{}) }
