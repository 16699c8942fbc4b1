package subject

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/tcpilot/tcpilot/internal/undo"
)

const (
	// BpftuneEnv is the environment variable that names bpftune, or a program that passes
	// its arguments on to it. It comes before the places in which FindBpftune looks.
	BpftuneEnv = "TCPILOT_LAB_BPFTUNE"
	// BpftuneCacheEnv is the environment variable that says where tools/bpftune-root
	// makes its root directory.
	BpftuneCacheEnv = "TCPILOT_BPFTUNE_CACHE"
	// bpftune does not report when it is ready, and some of its tuners load after that of
	// congestion controls is attached. The lab waits until bpftune uses less than
	// bpftuneIdle of a CPU over bpftuneSettle, but not longer than bpftuneLoads: what it
	// still uses after that is its cost.
	bpftuneSettle = time.Second
	bpftuneIdle   = 0.05
	bpftuneLoads  = 2 * time.Minute
)

// bpftune runs in the namespace of each tuned host, on its cgroup
// (docs/bpftune.rst of oracle/bpftune).
type bpftune struct {
	none
	at      Bpftuned
	preload bool
	sites   sites
}

// Bpftuned is a bpftune that is installed.
type Bpftuned struct {
	Root   string // the root directory that it is installed in; empty is this machine's
	Binary string // in the root
}

const (
	// bpftuneLayout is the version of the layout that tools/bpftune-root makes: Root has
	// the package bpftune, with bpftuneBinary, and bpftunePreload.
	bpftuneLayout  = "1"
	bpftuneBinary  = "/usr/sbin/bpftune"
	bpftunePreload = "/usr/lib/bpftune-preload.so"
)

// FindBpftune finds bpftune: the one that the environment names, else that of
// tools/bpftune-root, else the one in PATH; or ErrUnavailable.
func FindBpftune() (at Bpftuned, err error) {
	name := os.Getenv(BpftuneEnv)
	if name == "" {
		root := filepath.Join(bpftuneCache(), bpftuneLayout, "root")
		if _, err := os.Stat(root + bpftuneBinary); err == nil {
			return Bpftuned{Root: root, Binary: bpftuneBinary}, nil
		}
		name = "bpftune"
	}
	if at.Binary, err = exec.LookPath(name); err != nil {
		return at, fmt.Errorf("%w: bpftune is not installed: make a root directory that has it with "+
			"`tools/deps bpftune` as root, or name a program in %s: %w", ErrUnavailable, BpftuneEnv, err)
	}
	return at, nil
}

// bpftuneCache is where tools/bpftune-root puts what it makes.
func bpftuneCache() string {
	if dir := os.Getenv(BpftuneCacheEnv); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "" // nothing is there
	}
	return filepath.Join(dir, "tcpilot", "bpftune")
}

func newBpftune(_ Spec, w World) (*bpftune, error) {
	at, err := FindBpftune()
	if err != nil {
		return nil, err
	}
	all, err := newSites(w)
	if err != nil {
		return nil, err
	}
	b := &bpftune{at: at, sites: all}
	err = b.supported()
	if err != nil && at.Root != "" {
		// If it does not run as it is, it may run with the preloaded functions: see
		// tools/bpftune-root.
		b.preload = true
		if preloaded := b.supported(); preloaded != nil {
			err = errors.Join(err, fmt.Errorf("with %s: %w", bpftunePreload, preloaded))
		} else {
			err = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return b, nil
}

// supported asks bpftune whether it can run here.
func (b *bpftune) supported() error {
	s := b.sites[0]
	cmd := b.command(s, "-S")
	s.cgroup.Put(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("bpftune -S: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// command is bpftune on a site. The caller puts it into the site's cgroup. bpftune mounts
// cgroup2 over the cgroup's directory and does not unmount it, so it gets a mount namespace
// of its own. Newer versions mount before they open the directory, so that they tune the
// root of the hierarchy. Therefore it also gets a cgroup namespace of its own, in which
// that root is the site's cgroup.
func (b *bpftune) command(s *site, more ...string) *exec.Cmd {
	args := append([]string{b.at.Binary, "-s", "-c", s.cgroup.Path}, more...)
	if b.at.Root != "" {
		preload := ""
		if b.preload {
			preload = bpftunePreload
		}
		args = append([]string{"sh", "-euc", enterRoot, "bpftune", b.at.Root, preload}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP}
	return cmd
}

// enterRoot runs a command in a root directory, in which it mounts /sys, /proc, /dev and
// the kernel's modules. The mount namespace is the command's own.
const enterRoot = `root=$1 preload=$2
shift 2
for dir in sys proc dev; do mount --rbind "/$dir" "$root/$dir"; done
[ ! -d /lib/modules ] || mount --bind /lib/modules "$root/lib/modules"
exec chroot "$root" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin ${preload:+LD_PRELOAD="$preload"} "$@"
`

func (b *bpftune) begin(ctx context.Context, u *undo.Stack) error {
	if err := b.sites.keepSysctls(u); err != nil {
		return err
	}
	before := make([]programs, len(b.sites))
	for i, s := range b.sites {
		var err error
		if before[i], err = programsOf(s.cgroup.Path); err != nil {
			return err
		}
		u.Push("", func() error { return before[i].detachOthers(s.cgroup.Path) })
	}
	u.Push("", b.sites.end)
	for _, s := range b.sites {
		if err := s.start("bpftune", s.cgroup, b.command(s)); err != nil {
			return err
		}
	}
	attached := func() error {
		for i, s := range b.sites {
			if err := s.process.ready(ctx, func() error { return before[i].tunes(s.cgroup.Path) }); err != nil {
				return err
			}
		}
		return nil
	}
	if err := attached(); err != nil {
		return err
	}
	if err := b.sites.settle(ctx); err != nil {
		return err
	}
	return attached() // bpftune may have detached a program that it had attached only to probe the kernel
}

// settle waits until the processes in the sites' cgroups are idle: then bpftune has loaded
// its tuners.
func (all sites) settle(ctx context.Context) error {
	most := time.Now().Add(bpftuneLoads)
	for idle := false; !idle && time.Now().Before(most); {
		before, err := all.cpu()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(bpftuneSettle):
		}
		after, err := all.cpu()
		if err != nil {
			return err
		}
		idle = (after - before).Seconds() < bpftuneIdle*bpftuneSettle.Seconds()
	}
	return nil
}

func (b *bpftune) log() string { return b.sites.text() }

// hooks are where bpftune attaches programs to a cgroup: its connection tuner, and its
// sysctl tuner, which watches what is written (bpf_prog_attach in its src/*_tuner.c). It
// does not use links, so the programs stay attached if it is killed.
var hooks = []ebpf.AttachType{ebpf.AttachCGroupSockOps, ebpf.AttachCGroupSysctl}

// attached is a program at a hook.
type attached struct {
	at ebpf.AttachType
	id ebpf.ProgramID
}

// programs are the programs at the hooks of a cgroup.
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

// tunes returns an error while a cgroup has no other sock_ops program than these.
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
		return nil // it was detached meanwhile
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
