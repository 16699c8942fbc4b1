package cc

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/jiffies"
)

// kernelKnobs are the program variables that describe this kernel.
var kernelKnobs = sync.OnceValues(func() (map[string]any, error) {
	withAck, err := congControlWithAck()
	if err != nil {
		return nil, err
	}
	return map[string]any{"cong_control_with_ack": withAck, "jiffy_us": jiffies.Micros()}, nil
})

// kernelOps is struct tcp_congestion_ops of this kernel, from its BTF.
func kernelOps() (ops *btf.Struct, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoTypes, err)
	}
	if err := kernel.TypeByName(opsType, &ops); err != nil {
		return nil, fmt.Errorf("find struct %s: %w", opsType, err)
	}
	return ops, nil
}

// congControlWithAck reports whether cong_control takes (sk, ack, flag, rs) rather
// than (sk, rs).
func congControlWithAck() (bool, error) {
	ops, err := kernelOps()
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(ops.Members, func(m btf.Member) bool { return m.Name == "cong_control" })
	if i < 0 {
		return false, errors.New("this kernel's congestion controls have no cong_control")
	}
	ptr, _ := btf.As[*btf.Pointer](ops.Members[i].Type)
	if ptr == nil {
		return false, errors.New("this kernel's cong_control is not a function")
	}
	proto, _ := btf.As[*btf.FuncProto](ptr.Target)
	return proto != nil && len(proto.Params) == 4, nil
}

// errNoLinks: only a link lets a control outlive the process and still end when its pins
// are removed.
var errNoLinks = errors.New("this kernel cannot register a congestion control by a link (needs Linux 6.4)")

// errNoTypes: a kernel without BTF accepts no struct_ops.
var errNoTypes = errors.New("this kernel does not describe its types (CONFIG_DEBUG_INFO_BTF)")

// explainLoad adds why this kernel does not load a control. root says whether this process is root.
func explainLoad(err error, root bool) error {
	var verifier *ebpf.VerifierError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &verifier):
		return fmt.Errorf("this kernel's verifier refused it: %w", shorten(verifier))
	// Without privileges, cilium/ebpf cannot probe features of the kernel, and they seem to be missing.
	case errors.Is(err, os.ErrPermission), !root:
		return fmt.Errorf("needs root (CAP_SYS_ADMIN): %w", err)
	case strings.Contains(err.Error(), valueType):
		return fmt.Errorf("this kernel does not support congestion controls in BPF (CONFIG_BPF_JIT): %w", err)
	case errors.Is(err, unix.EINVAL) && strings.Contains(err.Error(), "map create"):
		return fmt.Errorf("%w: %w", errNoLinks, err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("this kernel lacks a feature that it needs: %w", err)
	}
	return err
}

// verifierLines is how many of the last lines of the verifier's log are shown.
const verifierLines = 4

// shorten keeps the end of the verifier's log, where the reason is.
func shorten(v *ebpf.VerifierError) error {
	log := v.Log
	if n := len(log); n > 0 && strings.HasPrefix(log[n-1], "processed ") {
		log = log[:n-1]
	}
	log = log[max(0, len(log)-verifierLines):]
	for i := range log {
		log[i] = strings.TrimSpace(log[i])
	}
	return fmt.Errorf("%w: %s", v.Cause, strings.Join(log, "; "))
}

// explainAttach adds why the kernel does not register a control.
func explainAttach(err error) error {
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("register: the kernel has a congestion control of this name already: %w", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("register: the kernel requires ssthresh, undo_cwnd, and cong_avoid or cong_control: %w", err)
	}
	return fmt.Errorf("register: %w", err)
}
