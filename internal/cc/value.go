package cc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cilium/ebpf/btf"

	"github.com/tcpilot/tcpilot/internal/progstats"
)

// value reads the control's struct from the kernel: struct bpf_struct_ops_common_value
// {refcnt, state}, then, aligned to a cache line, the control's struct, with the
// program's id in place of each function.
func (r *registration) value() ([]byte, error) {
	value, err := r.ops.LookupBytes(uint32(0))
	if err == nil && len(value) < 8 {
		err = fmt.Errorf("its value has %d bytes", len(value))
	}
	if err != nil {
		return nil, fmt.Errorf("read map of version %s: %w", r.Version, err)
	}
	return value, nil
}

// connections counts the sockets that use the control. The kernel reports the references
// to the map without those of files and pins (bpf_struct_ops_map_sys_lookup_elem); one of
// these is the link's.
func (r *registration) connections() (int, error) {
	value, err := r.value()
	if err != nil {
		return 0, err
	}
	return max(0, int(binary.NativeEndian.Uint32(value))-1), nil
}

// programs lists the functions of the control.
func (r *registration) programs() ([]progstats.Stats, error) {
	value, err := r.value()
	if err != nil {
		return nil, err
	}
	offsets, err := functionOffsets()
	if err != nil {
		return nil, err
	}
	var out []progstats.Stats
	for _, off := range offsets {
		if off+8 > len(value) {
			continue
		}
		if id := binary.NativeEndian.Uint64(value[off:]); id != 0 {
			out = append(out, progstats.Of(uint32(id)))
		}
	}
	return out, nil
}

// functionOffsets are the offsets of functions in the map's value.
var functionOffsets = sync.OnceValues(func() ([]int, error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoTypes, err)
	}
	var value, ops *btf.Struct
	if err := errors.Join(kernel.TypeByName(valueType, &value), kernel.TypeByName(opsType, &ops)); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(value.Members, func(m btf.Member) bool { return m.Name == "data" })
	if i < 0 {
		return nil, fmt.Errorf("this kernel's struct %s has no data", valueType)
	}
	var out []int
	for _, m := range ops.Members {
		if ptr, ok := btf.As[*btf.Pointer](m.Type); ok {
			if _, ok := btf.As[*btf.FuncProto](ptr.Target); ok {
				out = append(out, int(value.Members[i].Offset.Bytes()+m.Offset.Bytes()))
			}
		}
	}
	return out, nil
})
