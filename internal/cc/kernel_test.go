package cc

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestExplainLoad(t *testing.T) {
	verifier := &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{
		"0: R1=ctx()", "1: r2 = 0", "2: (79) r1 = *(u64 *)(r1 +0)", "3: (7b) *(u64 *)(r1 +8) = r2",
		"\tR1=ptr_tcp_sock()", "no write support to tcp_sock at off 8", "processed 4 insns (limit 1000000)"}}
	for _, c := range []struct {
		err        error
		want, hide string
	}{
		{nil, "", ""},
		{verifier, "verifier refused it: permission denied: 2: (79)", "R1=ctx"},
		{verifier, "no write support to tcp_sock at off 8", "processed"},
		{fmt.Errorf("map create: %w", unix.EPERM), "needs root", ""},
		{fmt.Errorf("map x: map create: %w", unix.EINVAL), "6.4", ""},
		{fmt.Errorf("map x: struct_ops: %q doesn't exist in kernel: %w", "bpf_struct_ops_tcp_congestion_ops", ebpf.ErrNotSupported), "does not support congestion controls in BPF", ""},
		{fmt.Errorf("program x: kfunc y: %w", ebpf.ErrNotSupported), "lacks a feature that it needs: program x", ""},
		{errors.New("anything else"), "anything else", ""},
	} {
		got := explainLoad(c.err, true)
		if c.err == nil {
			if got != nil {
				t.Errorf("nothing went wrong: %v", got)
			}
			continue
		}
		if !strings.Contains(got.Error(), c.want) || c.hide != "" && strings.Contains(got.Error(), c.hide) {
			t.Errorf("%v: %v, want %q", c.err, got, c.want)
		}
		if c.err != error(verifier) && !errors.Is(got, c.err) {
			t.Errorf("%v is not kept in %v", c.err, got)
		}
	}
	if !errors.Is(explainLoad(fmt.Errorf("map x: map create: %w", unix.EINVAL), true), errNoLinks) {
		t.Error("no errNoLinks for a kernel without links")
	}
	// Features that an unprivileged process cannot try seem to be missing.
	if got := explainLoad(fmt.Errorf("map x: %w", ebpf.ErrNotSupported), false); !strings.Contains(got.Error(), "needs root") {
		t.Errorf("without root: %v", got)
	}
}

func TestExplainAttach(t *testing.T) {
	for err, want := range map[error]string{
		unix.EEXIST: "of this name already",
		unix.EINVAL: "ssthresh",
		unix.EPERM:  "register",
	} {
		if got := explainAttach(err); !errors.Is(got, err) || !strings.Contains(got.Error(), want) {
			t.Errorf("%v: %v, want %q", err, got, want)
		}
	}
}

// TestCongControl: this kernel's cong_control gets the acknowledgement if its release
// says so: Linux 6.10 and later.
func TestCongControl(t *testing.T) {
	withAck, err := congControlWithAck()
	if errors.Is(err, errNoTypes) {
		testenv.Missing(t, err.Error())
	}
	must(t, err)
	release := strings.TrimSpace(testenv.ReadSysctl(t, nil, "kernel.osrelease"))
	var major, minor int
	_, err = fmt.Sscanf(release, "%d.%d", &major, &minor)
	must(t, err)
	if want := major > 6 || major == 6 && minor >= 10; withAck != want {
		t.Errorf("on Linux %s cong_control has the ack and flag: %t, want %t", release, withAck, want)
	}
}
