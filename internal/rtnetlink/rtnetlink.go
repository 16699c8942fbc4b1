package rtnetlink

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// errShort is the error of an answer that ends too early.
var errShort = errors.New("rtnetlink: an answer that is too short")

// get makes a request that has one answer, and returns the answer without its header. An error of the
// kernel is a unix.Errno.
func get(kind uint16, body []byte) ([]byte, error) {
	answered, answer, err := exchange(unix.NETLINK_ROUTE, kind, 0, body)
	if err != nil {
		return nil, err
	}
	if answered == unix.NLMSG_ERROR {
		return nil, cmp.Or(errorOf(answer), errShort)
	}
	return answer, nil
}

// Set makes a request that the kernel acknowledges. flags are those beside NLM_F_REQUEST and NLM_F_ACK. An
// error of the kernel is a unix.Errno.
func Set(kind, flags uint16, body []byte) error {
	answered, answer, err := exchange(unix.NETLINK_ROUTE, kind, flags|unix.NLM_F_ACK, body)
	if err != nil {
		return err
	}
	if answered != unix.NLMSG_ERROR {
		return errors.New("rtnetlink: the answer is not an acknowledgement")
	}
	return errorOf(answer)
}

// exchange sends a request to a part of the kernel (NETLINK_ROUTE, ...), and returns the type and the body of the answer.
func exchange(protocol int, kind, flags uint16, body []byte) (answered uint16, answer []byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return 0, nil, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	request := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	request = binary.NativeEndian.AppendUint16(request, kind)
	request = binary.NativeEndian.AppendUint16(request, flags|unix.NLM_F_REQUEST)
	request = append(append(request, make([]byte, 8)...), body...) // sequence and port are 0: each socket has one request
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, nil, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("sendto", err))
	}
	// An answer has a few KB: without RTEXT_FILTER_VF, that for a device lacks its virtual functions.
	answer = make([]byte, 64<<10)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("recvfrom", err))
	}
	if n < unix.SizeofNlMsghdr {
		return 0, nil, errShort
	}
	length := int(binary.NativeEndian.Uint32(answer))
	if length < unix.SizeofNlMsghdr || length > n {
		return 0, nil, errShort
	}
	return binary.NativeEndian.Uint16(answer[4:]), answer[unix.SizeofNlMsghdr:length], nil
}

// errorOf is what an answer of the type NLMSG_ERROR says; nil if it acknowledges.
func errorOf(answer []byte) error {
	if len(answer) < 4 {
		return errShort
	}
	if code := int32(binary.NativeEndian.Uint32(answer)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// Attribute is an attribute of a message.
func Attribute(kind uint16, value []byte) []byte {
	a := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(value)))
	a = append(binary.NativeEndian.AppendUint16(a, kind), value...)
	return append(a, make([]byte, -len(a)&3)...)
}

// typeMask leaves out the flags of an attribute's type (NLA_TYPE_MASK).
const typeMask = 1<<14 - 1

// EachAttribute calls f for each attribute of a message, without the flags of its type.
func EachAttribute(b []byte, f func(kind uint16, value []byte) error) error {
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return errShort
		}
		if err := f(binary.NativeEndian.Uint16(b[2:])&typeMask, b[unix.SizeofRtAttr:n]); err != nil {
			return err
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return nil
}
