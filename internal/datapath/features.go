package datapath

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Feature is a part of the datapath that a kernel may lack.
type Feature struct {
	Name string
	Err  error // why it is not active; nil if it is
}

const (
	featureSockops = "sock_ops: classify and set"
	featureReport  = "tp_btf/tcp_destroy_sock: samples at the end of connections"
	featureSpare   = "tp_btf/tcp_destroy_sock, second program: samples at ends that the kernel hides from the first"
	featureEnds    = "tp_btf/tcp_send_reset, tp_btf/inet_sk_error_report: resets and errors"
	featureUndone  = "tp_btf/tcp_cong_state_set: spurious timeouts that the peer does not report"
	featureLive    = "iter/tcp: samples of live connections"
	featureOld     = "TCP_BPF_SOCK_OPS_CB_FLAGS: the peer option of listeners that are older than its rule"
	featureSynAcks = "bpf_cast_to_kern_ctx: adapted timeouts of SYN-ACKs"
	featureResume  = "struct_ops with links: congestion windows after the first round trip"
	featureLimits  = "iter/bpf_sk_storage_map: rate limits are divided by need"
	featureHere    = "iter/tcp: rate limits are divided by need, among connections of the network namespaces that are found"
)

// Features lists which parts are active.
func (d *Datapath) Features() []Feature {
	out := []Feature{{featureSockops, nil}, {featureReport, d.reportErr}, {featureEnds, d.endsErr}, {featureUndone, d.undoneErr}, {featureLive, d.liveErr}, d.limits.feature(), {featureResume, d.resume.err}}
	if err := d.spareFailure(); err != nil {
		out = append(out, Feature{featureSpare, err})
	}
	if d.asksListeners() {
		out = append(out, Feature{featureOld, d.oldListeners()})
	}
	if err := d.synAcks(); err != nil {
		out = append(out, Feature{featureSynAcks, err})
	}
	return out
}

// synAcks returns why adapted timeouts of SYN-ACKs are not set; nil as long as none was to be, or if they are.
func (d *Datapath) synAcks() error {
	var blind uint32
	if err := d.objs.SynacksBlind.Get(&blind); err != nil {
		return fmt.Errorf("read what the program reports: %w", err)
	}
	if blind == 0 {
		return nil
	}
	return errors.New("a program cannot look at the listener of a SYN-ACK (bpf_cast_to_kern_ctx, Linux 6.2): its timeout stays the kernel's")
}

// TryLoad loads every object without attaching it, to find out which ones this kernel
// accepts, and unloads them.
func TryLoad() []Feature {
	out := []Feature{{Name: featureSockops}, {Name: featureReport}, {Name: featureEnds}, {Name: featureUndone}, {Name: featureLive}, {Name: featureLimits}, {Name: featureResume}}
	var objs sockopsObjects
	r := newResume()
	spec, err := sockopsSpec(r.name)
	if err == nil {
		err = explainLoad("sockops", spec.LoadAndAssign(&objs, nil))
	}
	if err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	defer objs.Close()
	out[1].Err = tryTracepoint(objs.TcpilotReport)
	out[2].Err = errors.Join(tryTracepoint(objs.TcpilotReset), tryTracepoint(objs.TcpilotError))
	out[3].Err = tryTracepoint(objs.TcpilotUndone)
	if it, err := newLiveIterator(&objs.sockopsMaps, 0); err != nil {
		out[4].Err = err
	} else {
		_ = it.Close()
	}
	var l limits
	l.err = l.load(&objs.sockopsMaps, 0)
	out[5] = l.feature()
	_ = l.close()
	out[6].Err = r.register(&objs.sockopsMaps)
	_ = r.close()
	return out
}

func tryTracepoint(prog *ebpf.Program) error {
	l, err := link.AttachTracing(link.TracingOptions{Program: prog})
	if err != nil {
		return err
	}
	return l.Close()
}

// ProgramIDs lists the programs loaded by tcpilot, including users' own.
func (d *Datapath) ProgramIDs() []uint32 {
	var ids []uint32
	if progs, err := d.Programs(); err == nil {
		for _, p := range progs {
			ids = append(ids, p.ID)
		}
	}
	for _, u := range d.UserObjects() {
		ids = append(ids, u.ID)
	}
	return ids
}

// Foreign is a program that tcpilot did not load.
type Foreign struct {
	ID   uint32
	Name string
}

// String names the program in messages.
func (f Foreign) String() string { return fmt.Sprintf("sock_ops program %d (%s)", f.ID, f.Name) }

// OtherSockops lists the sock_ops programs attached to a cgroup directory, except those
// whose id is in ours; none if the directory cannot be queried.
func OtherSockops(cgroup string, ours []uint32) []Foreign {
	dir, err := os.Open(cgroup)
	if err != nil {
		return nil
	}
	defer dir.Close()
	res, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupSockOps})
	if err != nil {
		return nil
	}
	var out []Foreign
	for _, p := range res.Programs {
		if slices.Contains(ours, uint32(p.ID)) {
			continue
		}
		f := Foreign{ID: uint32(p.ID), Name: "unknown"}
		if prog, err := ebpf.NewProgramFromID(p.ID); err == nil {
			if info, err := prog.Info(); err == nil {
				f.Name = info.Name
			}
			_ = prog.Close()
		}
		out = append(out, f)
	}
	return out
}
