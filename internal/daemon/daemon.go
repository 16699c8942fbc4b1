package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/store"
)

// Options are what the command line says.
type Options struct {
	Config       string // file; empty is the built-in configuration
	Socket       string // overrides the configuration's; empty leaves it
	KeepAttached bool   // leave programs and policies in the kernel at the end
	Version      string
	Log          *slog.Logger // nil: as the configuration says, to standard error
}

// Daemon is one running tcpilot.
type Daemon struct {
	opt     Options
	log     *slog.Logger
	cfg     atomic.Pointer[config.Config]
	cgroup  string // attached to
	bpffs   string
	dp      *datapath.Datapath
	engine  *engine.Engine
	store   *store.Store
	hub     api.Hub
	started time.Time

	loadedAt  atomic.Int64           // Unix ns of the configuration in force
	reloadErr atomic.Pointer[string] // why the latest reload was refused; nil is none
	sysctls   *sysctls
	reloads   chan reloadRequest
	received  atomic.Uint64
	detach    atomic.Bool
	stop      context.CancelFunc
}

// task is a part of the daemon that runs until its context ends.
type task struct {
	name string
	run  func(context.Context) error
}

// gcPercent makes the collector run at half its usual growth: the heap is small
// and lives long, and memory is what a host gives up for tcpilot.
const gcPercent = 50

// Run runs the daemon until ctx ends or it is told to detach. Whatever it did to
// the host is undone on the way out, also when it fails half-way.
func Run(ctx context.Context, opt Options) (err error) {
	cfg, err := loadConfig(opt.Config)
	if err != nil {
		return err
	}
	if opt.Socket != "" {
		cfg.Socket.Path = opt.Socket
	}
	d := &Daemon{opt: opt, log: opt.Log, started: time.Now(), reloads: make(chan reloadRequest)}
	if d.log == nil {
		d.log = newLogger(os.Stderr, cfg.Log)
	}
	d.cfg.Store(cfg)
	d.loadedAt.Store(d.started.UnixNano())
	debug.SetGCPercent(gcPercent)

	var undo undoStack
	defer func() { err = errors.Join(err, undo.run()) }()
	if err := d.open(cfg, &undo); err != nil {
		return err
	}
	ctx, d.stop = context.WithCancel(ctx)
	defer d.stop()
	tasks, err := d.tasks(cfg, &undo)
	if err != nil {
		return err
	}
	debug.FreeOSMemory() // type information of the kernel, needed for loading only
	d.log.Info("tcpilot runs", "version", opt.Version, "cgroup", d.cgroup, "rules", len(cfg.Rules),
		"adopted", d.dp.Adopted(), "startup", time.Since(d.started).Round(time.Millisecond))
	err = runTasks(ctx, d.log, tasks)
	d.log.Info("tcpilot stops", "keep_attached", d.keep())
	return err
}

// keep reports whether the kernel's part outlives the process.
func (d *Daemon) keep() bool { return d.opt.KeepAttached && !d.detach.Load() }

func runTasks(ctx context.Context, log *slog.Logger, tasks []task) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, t := range tasks {
		g.Go(func() error {
			if err := t.run(ctx); err != nil && ctx.Err() == nil {
				log.Error("task failed", "task", t.name, "error", err)
				return fmt.Errorf("%s: %w", t.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// open takes what the daemon needs from the host, in order; undo gives it back
// in reverse.
func (d *Daemon) open(cfg *config.Config, undo *undoStack) error {
	release, err := host.Lock(filepath.Join(cfg.RunDir, "tcpilot.lock"))
	if err != nil {
		return fmt.Errorf("another tcpilot may be running: %w", err)
	}
	undo.push("release lock", release)
	if err := d.openDatapath(cfg, undo); err != nil {
		return err
	}
	if err := d.openStore(cfg, undo); err != nil {
		return err
	}
	return d.openEngine(cfg)
}

func (d *Daemon) openDatapath(cfg *config.Config, undo *undoStack) error {
	var err error
	if d.cgroup, err = cgroupDir(cfg.Cgroup); err != nil {
		return err
	}
	bpffs, unmount, err := host.MountBPFFS(cfg.BPFFS, privateBPFFS(cfg))
	if err != nil {
		return err
	}
	d.bpffs = bpffs
	undo.push("unmount bpffs", func() error {
		if d.keep() {
			return nil
		}
		return unmount()
	})
	d.dp, err = datapath.Open(datapath.Options{
		Cgroup: d.cgroup, BPFFS: bpffs, Log: d.log,
		MaxPolicies: cfg.Learning.Paths.Limit + 2*maxRoots,
	})
	if err != nil {
		return err
	}
	undo.push("detach", func() error {
		if d.keep() {
			return d.dp.Close()
		}
		return d.dp.Detach()
	})
	return nil
}

// maxRoots is room in the policy table for the rows of rules rather than paths.
const maxRoots = 4096

// privateBPFFS is where pins go when the host has no BPF file system mounted.
func privateBPFFS(cfg *config.Config) string { return filepath.Join(cfg.RunDir, "bpf") }

// cgroupDir is the configured cgroup's directory, or the root of the hierarchy.
func cgroupDir(path string) (string, error) {
	if path == "" {
		return host.CgroupRoot()
	}
	return host.CgroupDir(path)
}

func (d *Daemon) openStore(cfg *config.Config, undo *undoStack) error {
	if err := os.MkdirAll(cfg.StateDir, 0o755); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	path := filepath.Join(cfg.StateDir, "beliefs.db")
	s, moved, err := store.Open(path)
	if err != nil {
		return err
	}
	if moved != "" {
		d.log.Warn("what was learned could not be read, starting fresh", "file", path, "moved", moved)
	}
	d.store = s
	undo.push("close store", s.Close)
	return nil
}

func (d *Daemon) openEngine(cfg *config.Config) error {
	last, err := d.dp.LastClass()
	if err != nil {
		return err
	}
	d.engine = engine.New(engine.Options{
		Learner: newLearner(cfg.Learning), Bits: cfg.Learning.Paths.Bits, Limit: cfg.Learning.Paths.Limit,
		TTL: cfg.Learning.PolicyTTL, Sink: d.dp, Log: d.log, FirstClass: last + 1, Now: d.started.UnixNano(),
	})
	d.sysctls = newSysctls()
	if err := d.engine.SetRules(cfg.Rules, resolver(), time.Now().UnixNano()); err != nil {
		return err
	}
	if err := d.offerArms(); err != nil {
		return err
	}
	if err := d.remember(); err != nil {
		return err
	}
	d.engine.Tick(time.Now().UnixNano())
	if err := d.dp.DeletePoliciesExcept(func(class uint32) bool { return class > last }); err != nil {
		return err
	}
	if err := d.putSettings(); err != nil {
		return err
	}
	return d.dp.SetLease(cfg.Learning.Lease)
}

// putSettings tells the datapath what holds for all connections.
func (d *Daemon) putSettings() error {
	cc, fields := d.engine.Yields()
	return d.dp.SetSettings(datapath.Settings{
		Fields: d.engine.Fields(), Yield: fields, YieldCC: cc, Interval: d.cfg.Load().Interval,
	})
}

// undoStack holds what is to be undone, last first.
type undoStack struct{ steps []undoStep }

type undoStep struct {
	what string
	do   func() error
}

func (u *undoStack) push(what string, do func() error) { u.steps = append(u.steps, undoStep{what, do}) }

func (u *undoStack) run() error {
	var errs []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		if err := u.steps[i].do(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", u.steps[i].what, err))
		}
	}
	u.steps = nil
	return errors.Join(errs...)
}
