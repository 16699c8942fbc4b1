package poddevice

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

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
	return request(d, nil)
}

// Has returns why the kernel has no pairs of a kind; nil if it has. It asks for a pair with an MTU that no device can
// have: a kernel that knows the kind refuses the MTU before there is a device (kernel: veth_validate, and
// dev_validate_mtu in rtnl_create_link). So nothing is made, in the calling thread's namespace or another one.
func Has(d pod.Device) error {
	err := request(d, rtnetlink.Attribute(unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, math.MaxUint32)))
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// request asks the kernel for a pair, with attributes of the first end.
func request(d pod.Device, attributes []byte) error {
	kind := rtnetlink.Attribute(unix.IFLA_INFO_KIND, append([]byte(d), 0))
	body := append(make([]byte, unix.SizeofIfInfomsg), rtnetlink.Attribute(unix.IFLA_LINKINFO, kind)...)
	err := rtnetlink.Set(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, append(body, attributes...))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the kernel has no %s devices: needs %s", d, needs[d])
	}
	if err != nil {
		return fmt.Errorf("make a pair of %s devices: %w", d, err)
	}
	return nil
}
