package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/podlink"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/record"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// Check reads a configuration without applying it, and returns its rules as they would be
// in force.
func Check(file string) ([]engine.RuleState, error) {
	cfg, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	e, err := offlineEngine(cfg, 0)
	if err != nil {
		return nil, err
	}
	written, err := config.Written(file)
	if err != nil {
		return nil, err
	}
	rules := e.View(time.Now()).Rules
	for i := range rules {
		for j := range rules[i].Set {
			s := &rules[i].Set[j]
			s.Configured = written[rules[i].Name][s.Field]
		}
	}
	return rules, nil
}

// Warnings lists what a valid configuration needs and this host does not have now. It is not
// an error, because the configuration may be for another host, or for later. Nothing is
// changed, and no module is loaded.
func Warnings(file string) (warnings []string, err error) {
	cfg, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	names, err := kernelcc.Available()
	if err != nil {
		return nil, err
	}
	for _, name := range policy.Wanted(cfg.Rules) {
		if !congestion.HasOwnName(name) && !slices.Contains(names, name.String()) {
			warnings = append(warnings, fmt.Sprintf("congestion control %s is not available here: it needs its kernel module, or 'tcpilot cc load'", name))
		}
	}
	ids := make([]uint32, len(cfg.Rules))
	for i := range ids {
		ids[i] = uint32(i) + 1
	}
	_, waiting, err := policy.Compile(cfg.Rules, ids, resolver())
	if err != nil {
		return nil, err
	}
	warnings = append(warnings, startWarnings(cfg)...)
	warnings = append(warnings, routingWarnings(&cfg.Pods)...)
	warnings = append(warnings, timeoutProblems(cfg.Rules, countsTimeouts)...)
	for _, w := range waiting {
		warnings = append(warnings, fmt.Sprintf("rule %s: %s %s does not exist here", w.Rule, w.Kind, w.Name))
	}
	return warnings, nil
}

// startWarnings lists what would prevent the daemon from starting here.
func startWarnings(cfg *config.Config) (warnings []string) {
	if cfg.Cgroup != "" {
		if _, err := cgroupDir(cfg.Cgroup); err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	seen := map[string]bool{} // socket.group is that of admins if it is not written
	for _, g := range []struct{ key, name string }{{"admins", cfg.Socket.Admins}, {"group", cfg.Socket.Group}, {"read.group", cfg.Socket.Read.Group}} {
		if _, err := groupID(g.name); err != nil && !seen[g.name] {
			warnings = append(warnings, fmt.Sprintf("socket.%s: group %s does not exist here", g.key, g.name))
		}
		seen[g.name] = true
	}
	return warnings
}

// offlineEngine is an engine whose decisions are discarded.
func offlineEngine(cfg *config.Config, now int64) (*engine.Engine, error) {
	e := engine.New(engine.Options{
		Learner: newLearner(cfg.Learning), Bits: cfg.Learning.Paths.Bits, Limit: cfg.Learning.Paths.Limit,
		TTL: cfg.Learning.PolicyTTL, Sink: engine.Discard{}, Now: now,
	})
	return e, e.Start(cfg.Rules, policy.Resolver{}, nil, now)
}

// replayTick is how often a replay decides, in the time of the samples.
const replayTick = int64(10 * time.Millisecond)

// Replay passes recorded samples to a new engine, the same as in the daemon, without root.
// Samples keep the rule that they were recorded under if the configuration has one of that
// name; otherwise they are classified again.
func Replay(ctx context.Context, file, learner string, meta record.Meta, samples iter.Seq[*tcp.Sample]) (*engine.Snapshot, error) {
	cfg, _, err := loadConfig(file)
	if err != nil {
		return nil, err
	}
	if learner != "" {
		cfg.Learning.Learner = learner
	}
	e, err := offlineEngine(cfg, meta.Created.UnixNano())
	if err != nil {
		return nil, err
	}
	classes := replayClasses(e, meta)
	offered, def := map[tcp.CC]bool{}, tcp.CC{}
	var last, ticked int64
	for s := range samples {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, cc := range []tcp.CC{s.Arm, s.CC} {
			if cc != (tcp.CC{}) && !offered[cc] {
				offered[cc] = true
				e.SetOffered(offersOf(offered), def)
			}
		}
		if def == (tcp.CC{}) && isDefault(s) {
			def = s.CC
			e.SetOffered(offersOf(offered), def)
		}
		s.Class = classes.of(e, s)
		e.Observe(s)
		if last = max(last, s.At); last-ticked >= replayTick {
			e.Tick(last)
			ticked = last
		}
	}
	e.Settle(last)
	return e.ViewAll(time.Unix(0, last)), nil
}

// isDefault reports whether the connection had the host's default.
func isDefault(s *tcp.Sample) bool {
	return (s.Has(tcp.FlagHoldOut) || s.Has(tcp.FlagDefaultArm)) && !s.Has(tcp.FlagAppCC)
}

func offersOf(recorded map[tcp.CC]bool) []congestion.Control {
	var list []congestion.Control
	for cc := range recorded {
		list = append(list, congestion.Of(cc))
	}
	return list
}

// classMap maps recorded classes to those of the replay.
type classMap map[uint32]uint32

func replayClasses(e *engine.Engine, meta record.Meta) classMap {
	m := classMap{}
	for _, rs := range e.View(meta.Created).Rules {
		for _, r := range meta.Rules {
			if r.Name == rs.Name {
				m[r.Class] = rs.Class
			}
		}
	}
	return m
}

func (m classMap) of(e *engine.Engine, s *tcp.Sample) uint32 {
	if id, ok := m[s.Class]; ok {
		return id
	}
	return e.Classify(&class.Conn{
		Remote: s.Remote.Addr(), Local: s.Local.Addr(), RemotePort: s.Remote.Port(), LocalPort: s.Local.Port(),
		NetNS: s.NetNS, Cgroups: []uint64{s.Cgroup}, Outgoing: s.Has(tcp.FlagOutgoing),
	})
}

// Examined lists the directories in which Detach and DetachPods look for what a daemon left. It is an
// error if no file is named and socket, unless empty, is not where the daemon of that configuration listens:
// then a daemon with another configuration is meant.
func Examined(file, socket string) (dirs []string, err error) {
	cfg, read, err := loadConfig(file)
	if err != nil {
		return nil, err
	}
	if dir := filepath.Dir(socket); file == "" && socket != "" && !sameDir(dir, cfg.RunDir) && !sameDir(dir, filepath.Dir(cfg.Socket.Path)) {
		return nil, (&api.Error{Message: fmt.Sprintf("the daemon of %s may have had another configuration than %s, whose run_dir is %s", socket,
			cmp.Or(read, "the built-in defaults"), cfg.RunDir)}).WithHint("name its configuration: tcpilot detach --config FILE; if it had none, leave --socket out")
	}
	return []string{cfg.RunDir, cfg.StateDir, datapath.PinDir(cfg.BPFFS)}, nil
}

// sameDir reports whether two paths lead to one directory, which need not exist.
func sameDir(a, b string) bool {
	return realPath(a) == realPath(b)
}

// realPath is a path without symbolic links, as far as it exists.
func realPath(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real
	}
	if parent := filepath.Dir(abs); parent != abs {
		return filepath.Join(realPath(parent), filepath.Base(abs))
	}
	return abs
}

// Detach removes what a daemon that no longer runs left on the host, and returns what that
// was.
func Detach(file string) (undone []string, err error) {
	return offline(file, detach)
}

func detach(cfg *config.Config) (undone []string, err error) {
	for _, dir := range []string{cfg.BPFFS, privateBPFFS(cfg)} {
		// On another file system, a directory of that name is not tcpilot's.
		if !host.IsBPFFS(dir) || !pinned(dir) {
			continue
		}
		if err := removePins(dir); err != nil {
			return undone, err
		}
		undone = append(undone, "programs and maps pinned in "+datapath.PinDir(dir))
	}
	if private := privateBPFFS(cfg); host.IsBPFFS(private) {
		_, unmount, err := host.MountBPFFS("", private) // takes over the one that is there
		if err == nil {
			err = unmount()
		}
		if err != nil {
			return undone, err
		}
		undone = append(undone, "BPF file system mounted at "+private)
	}
	buffers, err := restoreBuffers(cfg)
	if err != nil {
		return undone, err
	}
	undone = append(undone, buffers...)
	sysctls, err := restoreProfile(cfg)
	if err != nil {
		return undone, err
	}
	undone = append(undone, sysctls...)
	sizes, err := restoreBigTCP(cfg)
	if err != nil {
		return undone, err
	}
	undone = append(undone, sizes...)
	nodes, err := detachNodeRoutes()
	if err != nil {
		return undone, err
	}
	undone = append(undone, nodes...)
	for _, socket := range []string{cfg.Socket.Path, readSocket(&cfg.Socket)} {
		if fi, err := os.Lstat(socket); err != nil || fi.Mode().Type() != fs.ModeSocket {
			continue
		}
		if err := os.Remove(socket); err != nil {
			return undone, fmt.Errorf("remove socket: %w", err)
		}
		undone = append(undone, "socket "+socket)
	}
	return undone, nil
}

// DetachPods removes what a daemon that no longer runs left at the devices of pods, and returns what
// that was.
func DetachPods(file string) (undone []string, err error) {
	return offline(file, func(cfg *config.Config) (undone []string, err error) {
		for _, dir := range []string{cfg.BPFFS, privateBPFFS(cfg)} {
			if !host.IsBPFFS(dir) {
				continue
			}
			removed, err := removePodPins(dir)
			if err != nil {
				return undone, err
			}
			if removed {
				undone = append(undone, "programs at the devices of pods, pinned in "+podPins(dir))
			}
		}
		sizes, err := restoreBigTCP(cfg)
		nodes, failed := detachNodeRoutes()
		return append(append(undone, sizes...), nodes...), errors.Join(err, failed)
	})
}

// offline calls f with the configuration, while no daemon runs with it.
func offline(file string, f func(*config.Config) ([]string, error)) (undone []string, err error) {
	cfg, _, err := loadConfig(file)
	if err != nil {
		return nil, err
	}
	var u undo.Stack
	defer func() { err = errors.Join(err, u.Run()) }()
	if err := lockRunDir(cfg.RunDir, &u); err != nil {
		return nil, err
	}
	return f(cfg)
}

func removePodPins(bpffs string) (removed bool, err error) {
	var u undo.Stack
	defer func() { err = errors.Join(err, u.Run()) }()
	if err := lockPins(bpffs, &u); err != nil {
		return false, err
	}
	return podlink.Remove(podPins(bpffs))
}

func removePins(bpffs string) (err error) {
	var u undo.Stack
	defer func() { err = errors.Join(err, u.Run()) }()
	if err := lockPins(bpffs, &u); err != nil {
		return err
	}
	_, err = podlink.Remove(podPins(bpffs))
	return errors.Join(err, releaseConnections(bpffs), datapath.Remove(bpffs))
}

// releaseConnections gives running connections back what they had before this daemon, or one that is gone.
func releaseConnections(bpffs string) error {
	list, err := host.NewNetNSList()
	if err != nil {
		return err
	}
	err = datapath.Release(bpffs, func(walk func() error) error { return inAllNetNS(list, walk) })
	return errors.Join(err, list.Close())
}
