package daemon

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/record"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Check reads a configuration without using it, and shows its rules as they
// would be in force.
func Check(file string) ([]engine.RuleState, error) {
	cfg, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	e, err := offlineEngine(cfg, 0)
	if err != nil {
		return nil, err
	}
	return e.View(time.Now()).Rules, nil
}

// offlineEngine is an engine whose decisions go nowhere.
func offlineEngine(cfg *config.Config, now int64) (*engine.Engine, error) {
	e := engine.New(engine.Options{
		Learner: newLearner(cfg.Learning), Bits: cfg.Learning.Paths.Bits, Limit: cfg.Learning.Paths.Limit,
		TTL: cfg.Learning.PolicyTTL, Sink: engine.Discard{}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: now,
	})
	return e, e.SetRules(cfg.Rules, policy.Resolver{}, now)
}

// replayTick is how often, in the samples' own time, a replay decides.
const replayTick = int64(10 * time.Millisecond)

// Replay feeds recorded samples to a new engine: the same that runs in the
// daemon, without root. Samples keep the rule that they were recorded under if
// the configuration has one of that name; else they are classified again.
func Replay(ctx context.Context, file, learner string, meta record.Meta, samples iter.Seq[*tcp.Sample]) (*engine.Snapshot, error) {
	cfg, err := loadConfig(file)
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
	offered := map[tcp.CC]bool{}
	var last, ticked int64
	for s := range samples {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, cc := range []tcp.CC{s.Arm, s.CC} {
			if cc != (tcp.CC{}) && !offered[cc] {
				offered[cc] = true
				e.SetOffered(keysOf(offered))
			}
		}
		s.Class = classes.of(e, s)
		e.Observe(s)
		if last = max(last, s.At); last-ticked >= replayTick {
			e.Tick(last)
			ticked = last
		}
	}
	e.Tick(last)
	return e.View(time.Unix(0, last)), nil
}

func keysOf(m map[tcp.CC]bool) []tcp.CC {
	var names []string
	for cc := range m {
		names = append(names, cc.String())
	}
	slices.Sort(names)
	return parseCCs(names)
}

// classMap turns recorded classes into those of the replay.
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

// Doctor tries out what the kernel allows while no daemon runs.
func Doctor(file string) (api.Doctor, error) {
	cfg, err := loadConfig(file)
	if err != nil {
		return api.Doctor{}, err
	}
	e, err := offlineEngine(cfg, 0)
	if err != nil {
		return api.Doctor{}, err
	}
	doc, err := diagnose(e.Wanted())
	if err != nil {
		return doc, err
	}
	if doc.Cgroup, err = cgroupDir(cfg.Cgroup); err != nil {
		return doc, err
	}
	doc.Conflicts = conflicts(doc.Cgroup, nil)
	doc.Features = []api.Feature{}
	for _, f := range datapath.TryLoad() {
		a := api.Feature{Name: f.Name, Wanted: true, Active: f.Err == nil}
		if f.Err != nil {
			a.Why = f.Err.Error()
		}
		doc.Features = append(doc.Features, a)
	}
	return doc, nil
}

// Detach takes back what a daemon that no longer runs left in the kernel, and
// says what that was.
func Detach(file string) ([]string, error) {
	cfg, err := loadConfig(file)
	if err != nil {
		return nil, err
	}
	release, err := host.Lock(filepath.Join(cfg.RunDir, "tcpilot.lock"))
	if err != nil {
		return nil, err
	}
	defer release()
	var undone []string
	for _, dir := range []string{cfg.BPFFS, privateBPFFS(cfg)} {
		pinned := filepath.Join(dir, "tcpilot")
		if _, err := os.Stat(pinned); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := datapath.Remove(dir); err != nil {
			return undone, err
		}
		undone = append(undone, "programs and maps pinned in "+pinned)
	}
	private, unmount, err := host.MountBPFFS(cfg.BPFFS, privateBPFFS(cfg))
	if err != nil {
		return undone, err
	}
	if strings.HasPrefix(private, cfg.RunDir) {
		if err := unmount(); err != nil {
			return undone, err
		}
	}
	return undone, nil
}
