package poddevice

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// Support says whether the kernel can make pairs of a kind of device.
type Support struct {
	Device pod.Device
	Err    error // why it cannot; nil if it can
}

// Try makes a pair of each kind, in a namespace that ends with the attempt.
func Try() []Support {
	list := []Support{{Device: pod.Veth}, {Device: pod.Netkit}}
	for i := range list {
		list[i].Err = netns.InNew(func() error { return Make(list[i].Device) })
	}
	return list
}

// needs is what a kernel must have for pairs of a kind.
var needs = map[pod.Device]string{pod.Veth: "CONFIG_VETH", pod.Netkit: "Linux 6.7 or later, with CONFIG_NETKIT"}

// Make makes a pair with default names in the network namespace of the calling thread.
func Make(d pod.Device) error {
	kind := rtnetlink.Attribute(unix.IFLA_INFO_KIND, append([]byte(d), 0))
	body := append(make([]byte, unix.SizeofIfInfomsg), rtnetlink.Attribute(unix.IFLA_LINKINFO, kind)...)
	err := rtnetlink.Set(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the kernel has no %s devices: needs %s", d, needs[d])
	}
	if err != nil {
		return fmt.Errorf("make a pair of %s devices: %w", d, err)
	}
	return nil
}
