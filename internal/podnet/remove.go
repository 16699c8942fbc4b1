package podnet

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// Remove deletes the pair whose end on the host has the name; the kernel deletes its routes and neighbours. It is
// not an error if the pair is gone, or if another device has its name. It does not look into the pod's namespace,
// because its path, and the name of the interface in it, may belong to another pod by now.
func Remove(hostName string) error {
	host, err := open(netns.Own)
	if err != nil {
		return err
	}
	defer host.Close()
	l, err := host.LinkByName(hostName)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", hostName, err)
	}
	if !isOurs(l) {
		return nil // so that the pair is gone
	}
	return remove(host, l)
}

// isOurs reports whether a device that has the name of a pair's end was made by Make. A veth device is recognized
// by its MAC address; netkit without Ethernet headers has none.
func isOurs(l netlink.Link) bool {
	a := l.Attrs()
	switch deviceOf(l) {
	case pod.Netkit:
		return true
	case pod.Veth:
		_, outer := addressesOf(a.Name)
		return bytes.Equal(a.HardwareAddr, outer)
	}
	return false
}

// remove deletes by index: the name may belong to another device by now.
func remove(host *handle, l netlink.Link) error {
	err := host.LinkDel(l)
	if err == nil || errors.Is(err, unix.ENODEV) || isNotFound(err) {
		return nil
	}
	return fmt.Errorf("delete %s: %w", l.Attrs().Name, err)
}
