package link

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// inbox receives many messages by one system call.
type inbox struct {
	// data holds one message each. A packet's message has some 120 bytes; the
	// attributes that the worker reads come first, so that a cut message still has them.
	data    [64][256]byte
	vectors [64]unix.Iovec
	headers [64]mmsghdr
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	header unix.Msghdr
	length uint32
}

// receive reads the messages that wait at the socket and returns their number.
func (b *inbox) receive(fd int) int {
	for i := range b.headers {
		b.vectors[i] = unix.Iovec{Base: &b.data[i][0]}
		b.vectors[i].SetLen(len(b.data[i]))
		b.headers[i].header = unix.Msghdr{Iov: &b.vectors[i]}
		b.headers[i].header.SetIovlen(1)
	}
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.headers)),
		uintptr(len(b.headers)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// message returns received message i; it is valid until the next receive.
func (b *inbox) message(i int) []byte {
	return b.data[i][:min(int(b.headers[i].length), len(b.data[i]))]
}
