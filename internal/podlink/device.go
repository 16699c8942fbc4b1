package podlink

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// pair is a pod's device, as seen from the host, and the other end, in the pod.
type pair struct{ host, pod rtnetlink.Link }

// find finds the devices of a pod by their recorded indexes, which may be those of other devices by now. It
// returns the devices only if the kernel says that the one on the host and the one in the pod's network
// namespace are the two ends of one pair.
func find(p *pod.Pod) (pair, error) {
	if p.Interface == "" {
		return pair{}, errors.New("no valid record says which device it has: if it began before tcpilot-cni was installed, restart it")
	}
	if p.HostIndex == 0 || p.Index == 0 {
		return pair{}, errors.New("its record does not say which device it has: an older tcpilot-cni wrote it, or the device has no end on the host")
	}
	ns, err := os.Open(p.NetNS)
	if err != nil {
		return pair{}, fmt.Errorf("open network namespace of pod: %w", err)
	}
	defer ns.Close()
	found, err := findIn(int(ns.Fd()), p)
	if err != nil {
		return pair{}, fmt.Errorf("find device %d of pod: %w", p.HostIndex, err)
	}
	return found, nil
}

// Pair returns the host's end of a pod's pair of devices, and the pod's end, both verified as by find.
func Pair(p *pod.Pod) (host, inside rtnetlink.Link, err error) {
	found, err := find(p)
	return found.host, found.pod, err
}

func findIn(ns int, p *pod.Pod) (found pair, err error) {
	if found.host, err = rtnetlink.LinkByIndex(p.HostIndex); err != nil {
		return found, err
	}
	cookie, err := netns.Cookie(fmt.Sprintf("/proc/self/fd/%d", ns)) // the path may lead to another one by now
	if err != nil {
		return found, err
	}
	if cookie != p.Cookie {
		return found, fmt.Errorf("%s is another network namespace", p.NetNS)
	}
	err = netns.Do(ns, func() (err error) {
		found.pod, err = rtnetlink.LinkByIndex(p.Index)
		return err
	})
	if err != nil {
		return found, err
	}
	id, err := rtnetlink.NetNSID(ns) // after the link, because reading the link makes the kernel number the namespace
	if err != nil {
		return found, err
	}
	switch {
	case found.host.Kind != "veth" && found.host.Kind != "netkit":
		return found, fmt.Errorf("it is of the kind %q, neither veth nor netkit", found.host.Kind)
	case found.host.Below != p.Index || found.host.BelowNS != id || id == rtnetlink.SameNS:
		return found, errors.New("its other end is not in the pod")
	}
	return found, nil
}

// outer finds a device that leads to other hosts.
func outer(name string) (rtnetlink.Link, error) {
	d, err := rtnetlink.LinkByName(name)
	if errors.Is(err, unix.ENODEV) {
		return d, fmt.Errorf("there is no device %s", name)
	}
	if err != nil {
		return d, fmt.Errorf("find device %s: %w", name, err)
	}
	if d.Hardware != unix.ARPHRD_ETHER {
		return d, fmt.Errorf("device %s has no Ethernet headers", name)
	}
	return d, nil
}
