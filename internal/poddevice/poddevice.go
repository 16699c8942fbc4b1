package poddevice

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// Support says whether the kernel has a kind of device, and if not, why.
type Support struct {
	Device pod.Device
	Err    error
}

// Try makes a pair of each kind, in a namespace that ends with the attempt.
func Try() []Support {
	list := []Support{{Device: pod.Veth}, {Device: pod.Netkit}}
	for i := range list {
		list[i].Err = netns.InNew(func() error { return makePair(list[i].Device) })
	}
	return list
}

// needs is what a kernel without the kind lacks.
var needs = map[pod.Device]string{pod.Veth: "CONFIG_VETH", pod.Netkit: "Linux 6.7 or later, with CONFIG_NETKIT"}

// makePair asks for a pair with default names, without a library: the daemon, whose doctor this is for,
// has no other use of one.
func makePair(d pod.Device) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, newLink(d), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	if n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("RTM_NEWLINK: the answer is not an acknowledgement")
	}
	switch errno := unix.Errno(-int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:]))); errno {
	case 0:
		return nil
	case unix.EOPNOTSUPP:
		return fmt.Errorf("the kernel has no %s devices: needs %s", d, needs[d])
	default:
		return fmt.Errorf("make a pair of %s devices: %w", d, errno)
	}
}

// newLink is RTM_NEWLINK (rtnetlink(7)) with IFLA_LINKINFO, IFLA_INFO_KIND.
func newLink(d pod.Device) []byte {
	kind := attribute(unix.IFLA_INFO_KIND, append([]byte(d), 0))
	body := append(make([]byte, unix.SizeofIfInfomsg), attribute(unix.IFLA_LINKINFO, kind)...)
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, unix.RTM_NEWLINK)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	return append(append(b, make([]byte, 8)...), body...) // sequence and port are the kernel's to ignore
}

func attribute(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(data)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}
