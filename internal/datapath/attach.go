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
	resetPin   = "reset_link"
	errorPin   = "error_link"
	undonePin  = "undone_link"
	sparePin   = "spare_link"
)

// attach puts the programs in force. The program of a pinned link to the same cgroup is
// replaced in place, so that no connection is missed.
func (d *Datapath) attach(cgroup string) error {
	if err := d.attachSockops(cgroup); err != nil {
		return err
	}
	// Rules work without the tracepoints; Features reports which are not available.
	if d.report, d.reportErr = d.attachTracepoint(d.objs.TcpilotReport, reportPin); d.reportErr != nil {
		d.log.Error("samples are not available, learning is off", "error", d.reportErr)
	}
	// Left by an earlier process; this one attaches its own if it needs it.
	if err := os.Remove(filepath.Join(d.dir, sparePin)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old pin: %w", err)
	}
	var resetErr, errorErr error
	d.reset, resetErr = d.attachTracepoint(d.objs.TcpilotReset, resetPin)
	d.errors, errorErr = d.attachTracepoint(d.objs.TcpilotError, errorPin)
	if d.endsErr = errors.Join(resetErr, errorErr); d.endsErr != nil {
		d.log.Warn("of some connections it is unknown how they ended", "error", d.endsErr)
	}
	if d.undone, d.undoneErr = d.attachTracepoint(d.objs.TcpilotUndone, undonePin); d.undoneErr != nil {
		d.log.Warn("spurious timeouts are known only from peers that report them (DSACK)", "error", d.undoneErr)
	}
	d.attachedAt = time.Now()
	return nil
}

func (d *Datapath) attachSockops(cgroup string) error {
	var st unix.Stat_t
	if err := unix.Stat(cgroup, &st); err != nil {
		return fmt.Errorf("attach to cgroup %s: %w", cgroup, err)
	}
	d.cgroupID = st.Ino
	pin := filepath.Join(d.dir, sockopsPin)
	prog := d.objs.TcpilotSockops
	if l := adoptCgroupLink(pin, d.cgroupID); l != nil {
		if err := l.Update(prog); err == nil {
			d.sockops, d.adopted = l, true
			return nil
		}
		_ = l.Close() // replaced below
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("attach to cgroup %s: another sock_ops program there (or above) is attached exclusively, or privileges are missing: %w", cgroup, err)
	}
	if err != nil {
		return fmt.Errorf("attach to cgroup %s: %w", cgroup, explainAttach(err))
	}
	d.sockops = l
	return repin(l, pin)
}

// explainAttach explains EBADF, which the kernel returns for a directory of another file
// system.
func explainAttach(err error) error {
	if errors.Is(err, unix.EBADF) {
		return fmt.Errorf("not a directory of a cgroup2 file system: %w", err)
	}
	return err
}

// adoptCgroupLink returns the pinned link if it is attached to the cgroup of the
// given id, else nil.
func adoptCgroupLink(pin string, cgroup uint64) link.Link {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return nil
	}
	info, err := l.Info()
	if err == nil && info.Cgroup() != nil && info.Cgroup().CgroupId == cgroup {
		return l
	}
	_ = l.Close()
	return nil
}

// attachTracepoint attaches a tracepoint's program. The kernel cannot replace the program
// of such a link, so the new one is attached before the old one is detached. While both
// run, no connection is reported twice, because the first report removes its state.
func (d *Datapath) attachTracepoint(prog *ebpf.Program, pin string) (link.Link, error) {
	l, err := link.AttachTracing(link.TracingOptions{Program: prog})
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", pin, err)
	}
	if err := repin(l, filepath.Join(d.dir, pin)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// missedEnds is how many ends of connections the tracepoint's program missed: the kernel
// does not run a program that would interrupt itself.
func (d *Datapath) missedEnds() uint64 {
	last := d.objs.TcpilotReport
	if d.spare != nil {
		last = d.objs.TcpilotSpare
	}
	st, err := last.Stats()
	if err != nil {
		return d.missed
	}
	return d.missed + st.RecursionMisses
}

// attachSpare attaches a second program to the tracepoint, which gets the ends of
// connections that the first misses. d.mu must be locked.
func (d *Datapath) attachSpare() error {
	missed := d.missedEnds()
	l, err := d.attachTracepoint(d.objs.TcpilotSpare, sparePin)
	if err != nil {
		return err
	}
	d.spare, d.spareErr, d.missed = l, nil, missed
	d.log.Info("attached a second program at the end of connections, because the first missed some", "missed", d.missed)
	return nil
}

// An attempt to attach the second program that failed is repeated after sparePause; the pause doubles with each, up to mostSparePause.
const (
	sparePause     = time.Minute
	mostSparePause = time.Hour
)

// trySpare attaches the second program, unless an attempt has failed a short time ago. d.mu must be locked.
func (d *Datapath) trySpare(now time.Time) {
	if now.Before(d.spareAt) {
		return
	}
	if d.spareErr = d.attachSpare(); d.spareErr == nil {
		return
	}
	d.sparePause = min(max(2*d.sparePause, sparePause), mostSparePause)
	d.spareAt = now.Add(d.sparePause)
	d.log.Warn("some connections have no sample of their end", "error", d.spareErr, "again_in", d.sparePause)
}

// spareFailure returns why the second program, which is needed, is not attached.
func (d *Datapath) spareFailure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.spareErr
}

// repin pins l in place of an existing pin; removing that detaches its program.
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
