package subject

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

const (
	// BpftuneEnv is the environment variable that names bpftune, or a program that
	// runs it with the arguments that it gets, if it is not in PATH.
	BpftuneEnv = "TCPILOT_LAB_BPFTUNE"
	// bpftuneSettle is what its other tuners get to load once it chooses congestion
	// controls: it does not say when it is ready.
	bpftuneSettle = time.Second
)

// bpftune runs in the namespace of each tuned host, on its cgroup
// (docs/bpftune.rst of oracle/bpftune).
type bpftune struct {
	none
	binary string
	sites  sites
}

// FindBpftune returns the path of bpftune, or ErrUnavailable.
func FindBpftune() (string, error) {
	name := os.Getenv(BpftuneEnv)
	if name == "" {
		name = "bpftune"
	}
	binary, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: bpftune is not installed (%s may name it): %w", ErrUnavailable, BpftuneEnv, err)
	}
	return binary, nil
}

func newBpftune(_ Spec, w World) (*bpftune, error) {
	binary, err := FindBpftune()
	if err != nil {
		return nil, err
	}
	all, err := newSites(w)
	if err != nil {
		return nil, err
	}
	b := &bpftune{binary: binary, sites: all}
	if out, err := b.command(all[0], "-S").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: bpftune -S: %w: %s", ErrUnavailable, err, bytes.TrimSpace(out))
	}
	return b, nil
}

// command is bpftune on a site. It mounts cgroup2 over the cgroup's directory and
// leaves that there: in a mount namespace of its own that goes with it.
func (b *bpftune) command(s *site, more ...string) *exec.Cmd {
	cmd := exec.Command(b.binary, append([]string{"-s", "-c", s.cgroup.Path}, more...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}

func (b *bpftune) begin(ctx context.Context, u *undo) error {
	if err := b.sites.keepSysctls(u); err != nil {
		return err
	}
	before := make([]programs, len(b.sites))
	for i, s := range b.sites {
		var err error
		if before[i], err = programsOf(s.cgroup.Path); err != nil {
			return err
		}
		u.push(func() error { return before[i].detachOthers(s.cgroup.Path) })
	}
	u.push(b.sites.end)
	for _, s := range b.sites {
		if err := s.start("bpftune", nil, b.command(s)); err != nil {
			return err
		}
	}
	for i, s := range b.sites {
		if err := s.process.ready(ctx, func() error { return before[i].tunes(s.cgroup.Path) }); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(bpftuneSettle):
		return nil
	}
}

func (b *bpftune) log() string { return b.sites.text() }

// hooks are where bpftune attaches programs to a cgroup: its connection tuner, and
// its sysctl tuner, which watches what is written (bpf_prog_attach in its
// src/*_tuner.c). None is a link that would end with it.
var hooks = []ebpf.AttachType{ebpf.AttachCGroupSockOps, ebpf.AttachCGroupSysctl}

// attached is a program at a hook.
type attached struct {
	at ebpf.AttachType
	id ebpf.ProgramID
}

// programs are those of a cgroup.
type programs map[attached]bool

func programsOf(cgroup string) (programs, error) {
	dir, err := os.Open(cgroup)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	defer dir.Close()
	all := programs{}
	for _, hook := range hooks {
		result, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: hook})
		if err != nil {
			return nil, fmt.Errorf("list programs of cgroup: %w", err)
		}
		for _, p := range result.Programs {
			all[attached{hook, p.ID}] = true
		}
	}
	return all, nil
}

// tunes is an error while a cgroup has no other sock_ops program than these.
func (before programs) tunes(cgroup string) error {
	now, err := programsOf(cgroup)
	if err != nil {
		return err
	}
	for p := range now {
		if p.at == ebpf.AttachCGroupSockOps && !before[p] {
			return nil
		}
	}
	return errors.New("no sock_ops program is attached")
}

// detachOthers detaches the programs that were not there before: a bpftune that
// was killed leaves its own.
func (before programs) detachOthers(cgroup string) error {
	now, err := programsOf(cgroup)
	if err != nil {
		return err
	}
	dir, err := os.Open(cgroup)
	if err != nil {
		return fmt.Errorf("open cgroup: %w", err)
	}
	defer dir.Close()
	var errs []error
	for p := range now {
		if !before[p] {
			errs = append(errs, p.detach(dir))
		}
	}
	return errors.Join(errs...)
}

func (p attached) detach(cgroup *os.File) error {
	program, err := ebpf.NewProgramFromID(p.id)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it went meanwhile
	}
	if err == nil {
		err = link.RawDetachProgram(link.RawDetachProgramOptions{
			Target: int(cgroup.Fd()), Program: program, Attach: p.at})
		program.Close()
	}
	if err != nil {
		return fmt.Errorf("detach program %d of %s: %w", p.id, p.at, err)
	}
	return nil
}
