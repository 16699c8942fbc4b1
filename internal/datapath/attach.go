package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const (
	sockopsPin = "sockops_link"
	reportPin  = "report_link"
)

// attach puts the programs in force. A pinned attachment to the same cgroup gets
// the new program in place, so that no connection is missed.
func (d *Datapath) attach(cgroup string) error {
	if err := d.attachSockops(cgroup); err != nil {
		return err
	}
	if err := d.attachReport(); err != nil {
		// Rules still work; what cannot be had is said in Features.
		d.reportErr = err
		d.log.Error("samples are not available, learning is off", "error", err)
	}
	d.attachedAt = time.Now()
	return nil
}

func (d *Datapath) attachSockops(cgroup string) error {
	pin := filepath.Join(d.dir, sockopsPin)
	prog := d.objs.TcpilotSockops
	if l := adoptCgroupLink(pin, cgroup); l != nil {
		if err := l.Update(prog); err == nil {
			d.sockops, d.adopted = l, true
			return nil
		}
		_ = l.Close() // replaced below
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("attach to cgroup %s: another sock_ops program there (or above) does not let others in, or privileges are missing: %w", cgroup, err)
	}
	if err != nil {
		return fmt.Errorf("attach to cgroup %s: %w", cgroup, err)
	}
	d.sockops = l
	return repin(l, pin)
}

// adoptCgroupLink returns the pinned link if it is attached to cgroup, else nil.
func adoptCgroupLink(pin, cgroup string) link.Link {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	info, err := l.Info()
	if err == nil && info.Cgroup() != nil && unix.Stat(cgroup, &st) == nil && info.Cgroup().CgroupId == st.Ino {
		return l
	}
	_ = l.Close()
	return nil
}

// attachReport attaches the tracepoint program. The kernel cannot swap the
// program of such a link, so the new one goes first; for the moment that both
// run, whichever reports a connection also forgets it.
func (d *Datapath) attachReport() error {
	l, err := link.AttachTracing(link.TracingOptions{Program: d.objs.TcpilotReport})
	if err != nil {
		return fmt.Errorf("attach to tcp_destroy_sock: %w", err)
	}
	d.report = l
	return repin(l, filepath.Join(d.dir, reportPin))
}

// repin pins l in place of whatever has the name; removing the old pin detaches
// what it held.
func repin(l link.Link, pin string) error {
	if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old pin: %w", err)
	}
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

// Adopted reports whether an attachment of an earlier process was taken over.
func (d *Datapath) Adopted() bool { return d.adopted }

// AttachedAt is when this process put its programs in force.
func (d *Datapath) AttachedAt() time.Time { return d.attachedAt }
