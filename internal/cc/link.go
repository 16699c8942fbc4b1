package cc

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// cilium/ebpf v0.22 can create a link that registers a control, but can neither update it
// nor read which map it registers: update and registers call bpf(2).

// attach registers a loaded control.
func attach(ops *ebpf.Map) (link.Link, error) {
	l, err := link.AttachStructOps(link.StructOpsOptions{Map: ops})
	if err != nil {
		return nil, explainAttach(err)
	}
	return l, nil
}

// update replaces the control that a link registers by another one of the same name. It
// is atomic: each new socket gets the one or the other.
func update(l link.Link, ops *ebpf.Map) error {
	fd, err := linkFD(l)
	if err != nil {
		return err
	}
	attr := struct{ link, newMap, flags, oldMap uint32 }{link: fd, newMap: uint32(ops.FD())}
	err = bpf(unix.BPF_LINK_UPDATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(l)
	runtime.KeepAlive(ops)
	if err != nil {
		return fmt.Errorf("replace the version in force: %w", err)
	}
	return nil
}

// registers returns the ID of the map of the control that a link registers.
func registers(l link.Link) (ebpf.MapID, error) {
	fd, err := linkFD(l)
	if err != nil {
		return 0, err
	}
	// The start of struct bpf_link_info (include/uapi/linux/bpf.h); ops is struct_ops.map_id.
	var info struct{ kind, id, program, _, ops, _ uint32 }
	attr := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{fd, uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	err = bpf(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(l)
	if err != nil {
		return 0, fmt.Errorf("read link info: %w", err)
	}
	return ebpf.MapID(info.ops), nil
}

func linkFD(l link.Link) (uint32, error) {
	if open, ok := l.(interface{ FD() int }); ok && open.FD() > 0 {
		return uint32(open.FD()), nil
	}
	return 0, errors.New("the link is closed")
}

func bpf(cmd uintptr, attr unsafe.Pointer, size uintptr) error {
	_, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(attr), size)
	if errno != 0 {
		return errno
	}
	return nil
}
