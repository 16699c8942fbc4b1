package rtnetlink

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

var (
	errShort           = errors.New("rtnetlink: an answer that is too short")
	errNotAcknowledged = errors.New("rtnetlink: the answer is not an acknowledgement")
)

// get makes a request that has one answer, and returns the answer without its header. An error of the
// kernel is a unix.Errno.
func get(kind uint16, body []byte) ([]byte, error) { return getWith(kind, 0, body) }

// getWith is get with flags beside NLM_F_REQUEST.
func getWith(kind, flags uint16, body []byte) ([]byte, error) {
	answered, answer, err := exchange(unix.NETLINK_ROUTE, kind, flags, body)
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
		return errNotAcknowledged
	}
	return errorOf(answer)
}

// exchange sends a request to a part of the kernel (NETLINK_ROUTE, ...), and returns the type and the body of the answer.
func exchange(protocol int, kind, flags uint16, body []byte) (answered uint16, answer []byte, err error) {
	s, err := open(protocol)
	if err != nil {
		return 0, nil, err
	}
	defer s.Close()
	if err := s.send(request(kind, flags, body)); err != nil {
		return 0, nil, err
	}
	answers, err := s.receive()
	if err != nil {
		return 0, nil, err
	}
	answered, answer, _, err = first(answers)
	return answered, answer, err
}

// request is a request as part of a message. Sequence and port are 0: each socket has one message.
func request(kind, flags uint16, body []byte) []byte {
	r := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	r = binary.NativeEndian.AppendUint16(r, kind)
	r = binary.NativeEndian.AppendUint16(r, flags|unix.NLM_F_REQUEST)
	r = append(append(r, make([]byte, 8)...), body...)
	return append(r, make([]byte, -len(r)&3)...)
}

// socket is a socket for one message and its answers.
type socket int

func open(protocol int) (socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return 0, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("socket", err))
	}
	return socket(fd), nil
}

func (s socket) Close() error { return unix.Close(int(s)) }

func (s socket) send(message []byte) error {
	if err := unix.Sendto(int(s), message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("rtnetlink: %w", os.NewSyscallError("sendto", err))
	}
	return nil
}

// receive reads one answer, or several that the kernel sent as one.
func (s socket) receive() ([]byte, error) {
	size, _, err := unix.Recvfrom(int(s), nil, unix.MSG_PEEK|unix.MSG_TRUNC)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("recvfrom", err))
	}
	answers := make([]byte, size)
	n, _, err := unix.Recvfrom(int(s), answers, 0)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("recvfrom", err))
	}
	return answers[:n], nil
}

// acknowledged reads the answer to a request that only wants to know whether it succeeded.
func (s socket) acknowledged() error {
	answers, err := s.receive()
	if err != nil {
		return err
	}
	kind, body, _, err := first(answers)
	if err == nil && kind != unix.NLMSG_ERROR {
		err = errNotAcknowledged
	}
	return cmp.Or(err, errorOf(body))
}

// first splits off the first one of some answers.
func first(answers []byte) (kind uint16, body, rest []byte, err error) {
	if len(answers) < unix.SizeofNlMsghdr {
		return 0, nil, nil, errShort
	}
	length := int(binary.NativeEndian.Uint32(answers))
	if length < unix.SizeofNlMsghdr || length > len(answers) {
		return 0, nil, nil, errShort
	}
	return binary.NativeEndian.Uint16(answers[4:]), answers[unix.SizeofNlMsghdr:length], answers[min(len(answers), (length+3)&^3):], nil
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
