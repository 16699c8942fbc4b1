package daemon

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/filelock"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/store"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// Options are the options of the command line.
type Options struct {
	Config       string // file; empty is the built-in configuration
	Socket       string // overrides the configuration's; empty leaves it
	KeepAttached bool   // leave programs and policies in the kernel at the end
	Version      string
	Log          *slog.Logger // nil: as the configuration says, to standard error
}

// Daemon is one running tcpilot.
type Daemon struct {
	opt      Options
	log      *slog.Logger
	cfg      atomic.Pointer[config.Config]
	file     atomic.Pointer[string] // the file of cfg; empty is none
	cgroup   string                 // where programs are attached
	bpffs    string                 // directory of the pins
	dp       *datapath.Datapath
	controls *controls
	engine   *engine.Engine
	store    *store.Store
	hub      api.Hub
	live     api.Live
	started  time.Time

	loadedAt  atomic.Int64           // Unix ns of the configuration in force
	reloadErr atomic.Pointer[string] // why the latest reload was refused; nil is none
	// needRestart are the keys that the latest reload found changed and did not put into force; nil is none.
	needRestart atomic.Pointer[[]string]
	tasks       *supervisor
	sysctls     *sysctls
	pods        pods
	podDevices  podDevices
	bigTCP      *bigTCP
	podAPI      podAPI
	nodeRoutes  nodeRoutes
	rules       ruleSet
	buffers     *bufferLimits
	profile     *profile
	limits      rateLimits
	settings    settings
	diagnoses   diagnoses
	reloads     chan reloadRequest
	hup         chan os.Signal
	received    atomic.Uint64 // samples
	intervals   atomic.Uint64 // the part of received that is of live connections
	found       bool          // an earlier process left its programs attached
	ran         bool          // the start succeeded
	detach      atomic.Bool
	stop        context.CancelFunc
	ended       <-chan struct{} // closed when the tasks are to stop
}

// settings serializes writes of datapath.Settings.
type settings struct {
	sync.Mutex
	due atomic.Bool // the latest write failed
}

// gcPercent makes the collector run at a fifth of the usual heap growth: most of the heap is
// long-lived, samples do not allocate, and less memory matters more than the CPU time.
const gcPercent = 20

// Run runs the daemon until ctx ends or a client asks it to detach. Then it undoes its
// changes of the host, also if the start fails half-way.
func Run(ctx context.Context, opt Options) (err error) {
	cfg, file, err := loadConfig(opt.Config)
	if err != nil {
		return err
	}
	if opt.Socket != "" {
		cfg.Socket.Path = opt.Socket
	}
	d := &Daemon{opt: opt, log: opt.Log, started: time.Now(), reloads: make(chan reloadRequest), hup: make(chan os.Signal, 1)}
	d.limits.changed = make(chan struct{}, 1)
	if d.log == nil {
		d.log = newLogger(os.Stderr, cfg.Log)
	}
	d.tasks = newSupervisor(d.log)
	d.cfg.Store(cfg)
	d.file.Store(&file)
	d.loadedAt.Store(d.started.UnixNano())
	debug.SetGCPercent(gcPercent)
	// During the whole life of the process: an unhandled SIGHUP would kill it.
	signal.Notify(d.hup, syscall.SIGHUP)
	defer signal.Stop(d.hup)

	var u undo.Stack
	defer func() { err = errors.Join(err, u.Run()) }()
	if err := d.open(cfg, &u); err != nil {
		return err
	}
	ctx, d.stop = context.WithCancel(ctx)
	defer d.stop()
	d.ended = ctx.Done()
	tasks, err := d.makeTasks(cfg, &u)
	if err != nil {
		return err
	}
	d.ran = true
	freeMemory() // the kernel's BTF, which only loading needs
	d.log.Info("tcpilot runs", "version", opt.Version, "cgroup", d.cgroup, "rules", len(cfg.Rules),
		"adopted", d.dp.Adopted(), "startup", time.Since(d.started).Round(time.Millisecond))
	d.notify(systemd.SdNotifyReady)
	err = d.tasks.run(ctx, tasks)
	d.notify(systemd.SdNotifyStopping)
	d.log.Info("tcpilot stops", "keep_attached", d.keep())
	return err
}

// keep reports whether programs and policies stay in the kernel at the end. After a failed
// start, only those of an earlier process stay.
func (d *Daemon) keep() bool { return d.opt.KeepAttached && !d.detach.Load() && (d.ran || d.found) }

// open acquires the daemon's resources in order; undo releases them in reverse order.
func (d *Daemon) open(cfg *config.Config, u *undo.Stack) error {
	if err := lockRunDir(cfg.RunDir, u); err != nil {
		return err
	}
	if err := d.mountBPFFS(cfg, u); err != nil {
		return err
	}
	if err := lockPins(d.bpffs, u); err != nil {
		return err
	}
	d.found = pinned(d.bpffs)
	// Before the datapath, so that at the end its programs are detached before the congestion
	// controls that they set are unloaded.
	if err := d.openControls(cfg, u); err != nil {
		return err
	}
	if err := d.openDatapath(cfg, u); err != nil {
		return err
	}
	if err := d.openPods(cfg); err != nil {
		return err
	}
	if err := d.openStore(cfg, u); err != nil { // it makes the directory of the journals
		return err
	}
	d.openPodDevices(u)
	d.openNodeRoutes(u)
	if err := d.openEngine(cfg, u); err != nil {
		return err
	}
	if err := d.openBuffers(cfg, u); err != nil {
		return err
	}
	return d.openProfile(cfg, u)
}

// lockRunDir prevents a second daemon with the same run directory. At the end the directory
// is removed if it is empty.
func lockRunDir(dir string, u *undo.Stack) error {
	u.Push("remove run directory", func() error {
		_ = os.Remove(dir) // fails, as intended, if it holds files or is a mount
		return nil
	})
	release, err := filelock.Lock(filepath.Join(dir, "tcpilot.lock"))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("another tcpilot runs: %w", err)
	}
	if err != nil {
		return err
	}
	u.Push("release lock", release)
	return nil
}

func (d *Daemon) mountBPFFS(cfg *config.Config, u *undo.Stack) error {
	bpffs, unmount, err := host.MountBPFFS(cfg.BPFFS, privateBPFFS(cfg))
	if err != nil {
		return err
	}
	u.Push("unmount bpffs", func() error {
		if d.keep() {
			return nil
		}
		return unmount()
	})
	d.bpffs = bpffs
	return nil
}

// lockPins prevents a second daemon with the same pins, even with another run directory: it
// would adopt, rewrite and at its end remove what the first one uses.
func lockPins(bpffs string, u *undo.Stack) error {
	release, err := filelock.LockDir(datapath.PinDir(bpffs))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("another tcpilot uses the pins in this BPF file system: %w: stop it first, or set bpffs to another BPF file system", err)
	}
	if err != nil {
		return err
	}
	u.Push("release pins", release)
	return nil
}

func (d *Daemon) openDatapath(cfg *config.Config, u *undo.Stack) error {
	var err error
	if d.cgroup, err = cgroupDir(cfg.Cgroup); err != nil {
		return err
	}
	for _, p := range partProblems(cfg, d.cgroup) {
		d.log.Warn("only a part of the host is tuned", "why", p)
	}
	d.dp, err = datapath.Open(datapath.Options{
		Cgroup: d.cgroup, BPFFS: d.bpffs, SliceKey: sliceKey(cfg.Learning.DrawKey), Log: d.log,
		// Twice, because the rows of an earlier daemon are deleted only after the new ones are written.
		MaxPolicies: 2 * (cfg.Learning.Paths.Limit + maxRoots), Release: func() error { return releaseConnections(d.bpffs) },
	})
	if err != nil && !d.found {
		return errors.Join(err, datapath.Remove(d.bpffs))
	}
	if err != nil {
		return err
	}
	u.Push("detach", func() error {
		if d.keep() {
			return d.dp.Close()
		}
		return errors.Join(releaseConnections(d.bpffs), d.dp.Detach())
	})
	return nil
}

// sliceKey derives a key from a configured secret; the zero key if there is none.
func sliceKey(secret string) (key [16]byte) {
	if secret != "" {
		sum := sha256.Sum256([]byte(secret))
		copy(key[:], sum[:])
	}
	return key
}

// pinned reports whether an earlier process left anything there.
func pinned(bpffs string) bool {
	entries, err := os.ReadDir(datapath.PinDir(bpffs))
	return err == nil && len(entries) > 0
}

// maxRoots is the room in the policy table for the rows of rules, in addition to paths.
const maxRoots = 2048

// privateBPFFS is where pins are made if the host has no BPF file system mounted.
func privateBPFFS(cfg *config.Config) string { return filepath.Join(cfg.RunDir, "bpf") }

// cgroupDir is the configured cgroup's directory, or the root of the hierarchy. The directory is also
// returned if it does not exist, with that error.
func cgroupDir(path string) (string, error) {
	if path == "" {
		return cgroup.Root()
	}
	dir, err := cgroup.Dir(path)
	if err != nil {
		return "", err
	}
	if _, err = cgroup.ID(path); err != nil && dir != path {
		return dir, fmt.Errorf("cgroup %s: %w (a path outside the hierarchy is taken as relative to its root)", path, err)
	}
	if err != nil {
		return dir, fmt.Errorf("cgroup %s: %w", path, err)
	}
	return dir, nil
}

func (d *Daemon) openStore(cfg *config.Config, u *undo.Stack) error {
	if err := os.MkdirAll(cfg.StateDir, 0o755); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	path := filepath.Join(cfg.StateDir, "beliefs.db")
	s, moved, err := store.Open(path)
	if err != nil {
		return err
	}
	if moved != "" {
		d.log.Warn("stored beliefs cannot be read, starting without them", "file", path, "error", moved)
	}
	s.Keep(cfg.Learning.Paths.Limit + maxRoots)
	d.store = s
	u.Push("close store", s.Close)
	return nil
}

// openControls loads congestion controls before the engine offers them.
func (d *Daemon) openControls(cfg *config.Config, u *undo.Stack) error {
	var err error
	if d.controls, err = openControls(d.bpffs, d.log); err != nil {
		return err
	}
	u.Push("close congestion controls", func() error {
		var err error
		if !d.keep() {
			err = d.controls.unloadAll(d.log)
		}
		return errors.Join(err, d.controls.Close())
	})
	d.controls.want(context.Background(), cfg.CongestionControls, cfg.Rules)
	if err := d.controls.refresh(); err != nil {
		d.log.Warn("congestion controls not looked up", "error", err)
	}
	return nil
}

func (d *Daemon) openEngine(cfg *config.Config, u *undo.Stack) error {
	last, err := d.dp.LastClass()
	if err != nil {
		return err
	}
	if d.sysctls, err = newSysctls(d.log); err != nil { // before we change anything: the baseline
		return err
	}
	u.Push("close list of network namespaces", d.sysctls.close)
	d.engine = engine.New(engine.Options{
		Learner: newLearner(cfg.Learning), Bits: cfg.Learning.Paths.Bits, Limit: cfg.Learning.Paths.Limit,
		TTL: cfg.Learning.PolicyTTL, Sink: d.dp, Flows: d.dp.Flows, Log: d.log, Clock: time.Now,
		FirstClass: last + 1, Now: d.started.UnixNano(),
	})
	d.engine.SetObserve(cfg.Mode == engine.ModeObserve, d.started.UnixNano())
	if err := d.startEngine(cfg); err != nil {
		return err
	}
	u.Push("save what was learned", func() error { d.save(); return nil })
	if err := d.dp.DeletePoliciesExcept(func(class uint32) bool { return class > last }); err != nil {
		return err
	}
	if err := d.controls.trim(); err != nil { // no policy names the others
		d.log.Warn("congestion controls stay loaded", "error", err)
	}
	if err := d.putSettings(); err != nil {
		return err
	}
	if err := d.putLimits(); err != nil {
		return err
	}
	return d.dp.SetLease(cfg.Learning.Lease)
}

func (d *Daemon) startEngine(cfg *config.Config) error {
	if err := d.controls.offer(d.engine); err != nil {
		return err
	}
	failures, err := d.dp.CCErrors()
	if err != nil {
		return err
	}
	for cc, n := range failures {
		d.engine.ArmFailedBefore(cc, n)
	}
	return d.putRules(cfg.Rules, func(rules []policy.Rule) error {
		return d.engine.Start(rules, d.resolver(), d.loadBeliefs, time.Now().UnixNano())
	})
}

// reportRate is how many ends of connections are reported a second at most (Settings.ReportRate).
// Learning needs far fewer; a sample costs about 1 us in the kernel, and as much in the daemon.
const reportRate = 2000

// putSettings writes the settings of all connections to the datapath.
func (d *Daemon) putSettings() error {
	d.settings.Lock() // so that the last write has the latest values
	defer d.settings.Unlock()
	cc, fields := d.engine.Yields()
	set, adapted := d.engine.Fields()
	err := d.dp.SetSettings(datapath.Settings{
		Fields: set, Adapted: adapted, Inherited: d.sysctls.ccs(),
		Yields: append(d.sysctls.masks(), datapath.Yield{NetNS: d.sysctls.own, Fields: fields, CC: cc}), Interval: d.cfg.Load().Interval,
		ReportRate: reportRate,
	})
	d.settings.due.Store(err != nil)
	return err
}
