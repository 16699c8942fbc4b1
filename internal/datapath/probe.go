package datapath

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Hook is an event at which sock_ops programs can set options.
type Hook string

// The hooks that are probed.
const (
	HookConnect            Hook = "connect"
	HookActiveEstablished  Hook = "active-established"
	HookPassiveEstablished Hook = "passive-established"
)

var hooks = [abiProbeHookNUM_HOOKS]Hook{HookConnect, HookActiveEstablished, HookPassiveEstablished}

// Verdict is the kernel's result for one option at one hook.
type Verdict struct {
	Option string // field, or congestion control
	Kernel string // the kernel's name of it: TCP_BPF_IW, TCP_CONGESTION=cubic
	Hook   Hook
	Err    error // nil: accepted
}

// errNoAnswer stands for a hook that did not run.
var errNoAnswer = errors.New("the hook did not run")

// probeValues are harmless values of each option. FieldSpec.Min cannot be used, because the
// kernel refuses the least value of some options, or it would do harm.
var probeValues = map[tcp.Field]uint64{
	tcp.InitCwnd: 10, tcp.CwndClamp: 1000, tcp.RTOMin: 100_000, tcp.RTOMax: 60_000, tcp.DelackMax: 40_000,
	tcp.Sndbuf: 1 << 20, tcp.Rcvbuf: 1 << 20, tcp.WindowClamp: 1 << 20, tcp.NotsentLowat: 1 << 17, tcp.RcvLowat: 1,
	tcp.MaxPacingRate: 1 << 31, tcp.MaxSeg: 1400, tcp.NoDelay: 1, tcp.ThinLinearTimeouts: 1, tcp.UserTimeout: 60_000,
	tcp.SynCount: 6, tcp.SaveSyn: 0, tcp.KeepAlive: 1, tcp.KeepIdle: 7200, tcp.KeepInterval: 75, tcp.KeepCount: 9,
	tcp.Priority: 1, tcp.Mark: 0, tcp.TxRehash: 1, tcp.TOS: 0, tcp.TClass: 0,
}

// probeTimeout bounds the whole of a probe's loopback traffic.
const probeTimeout = 5 * time.Second

// Probe finds out which options the kernel accepts at which hook, by setting them on two
// connections over the loopback of a network namespace of its own. The calling process must
// belong to cgroup. No other connection is touched.
func Probe(cgroup string, ccs []tcp.CC) ([]Verdict, error) {
	var verdicts []Verdict
	err := netns.InNew(func() (err error) { verdicts, err = probe(cgroup, ccs); return err })
	return verdicts, err
}

// probe is for a network namespace of its own.
func probe(cgroup string, ccs []tcp.CC) ([]Verdict, error) {
	if err := rtnetlink.SetUp("lo"); err != nil {
		return nil, fmt.Errorf("prepare probe: %w", err)
	}
	cookie, err := netns.Cookie(netns.Own)
	if err != nil {
		return nil, err
	}
	objs, err := loadProbeFor(cookie, ccs)
	if err != nil {
		return nil, err
	}
	defer objs.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: objs.TcpilotProbe})
	if err != nil {
		return nil, fmt.Errorf("attach probe to cgroup %s: %w", cgroup, err)
	}
	defer l.Close()
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		if err := connectOnce(addr); err != nil {
			if addr[0] == '[' {
				continue // a host without IPv6 leaves tclass untried
			}
			return nil, fmt.Errorf("connect for probe: %w", err)
		}
	}
	return readProbe(objs, ccs)
}

func loadProbeFor(cookie uint64, ccs []tcp.CC) (*probeObjects, error) {
	spec, err := loadProbe()
	if err != nil {
		return nil, fmt.Errorf("read embedded object probe: %w", err)
	}
	var values [tcp.NumFields]uint64
	for f, v := range probeValues {
		values[f] = v
	}
	var names [maxCC]tcp.CC
	n := copy(names[:], ccs)
	for name, v := range map[string]any{
		probeVarOptions: optionTable(), probeVarProbeValue: values, probeVarProbeCc: names,
		probeVarNumProbeCc: uint32(n), probeVarProbeNetns: cookie,
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("set probe's %s: %w", name, err)
		}
	}
	objs := &probeObjects{}
	if err := spec.LoadAndAssign(objs, nil); err != nil {
		return nil, explainLoad("probe", err)
	}
	untried := abiProbeResult{}
	for i := range untried.Field {
		untried.Field[i] = probeUntried
	}
	for i := range untried.Cc {
		untried.Cc[i] = probeUntried
	}
	for hook := range hooks {
		if err := objs.Results.Put(uint32(hook), &untried); err != nil {
			return nil, errors.Join(fmt.Errorf("prepare probe: %w", err), objs.Close())
		}
	}
	return objs, nil
}

// probeUntried is PROBE_UNTRIED of bpf/include/abi.h: no errno is positive.
const probeUntried = 1

func readProbe(objs *probeObjects, ccs []tcp.CC) ([]Verdict, error) {
	var out []Verdict
	for i, hook := range hooks {
		var r abiProbeResult
		if err := objs.Results.Lookup(uint32(i), &r); err != nil {
			return nil, fmt.Errorf("read probe: %w", err)
		}
		for f := range tcp.NumFields {
			if _, ok := options[f]; ok {
				out = append(out, Verdict{f.String(), tcp.Fields[f].Kernel, hook, verdictErr(r.Field[f])})
			}
		}
		for i, cc := range ccs[:min(len(ccs), maxCC)] {
			out = append(out, Verdict{cc.String(), "TCP_CONGESTION=" + cc.String(), hook, verdictErr(r.Cc[i])})
		}
	}
	return out, nil
}

func verdictErr(code int32) error {
	switch {
	case code == 0:
		return nil
	case code == probeUntried:
		return errNoAnswer
	}
	return syscall.Errno(-code)
}

// connectOnce opens and closes one connection on addr.
func connectOnce(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.DialTimeout("tcp", l.Addr().String(), probeTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(probeTimeout)); err != nil {
		return err
	}
	s, err := l.Accept()
	if err != nil {
		return err
	}
	return s.Close()
}
