package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/progstats"
)

var _ api.Backend = (*Daemon)(nil)

// Snapshot implements api.Backend.
func (d *Daemon) Snapshot() *engine.Snapshot { return d.engine.Snapshot(time.Now()) }

// Samples implements api.Backend.
func (d *Daemon) Samples(ctx context.Context) (*api.Subscription, error) { return d.hub.Subscribe(ctx) }

// Status implements api.Backend.
func (d *Daemon) Status(context.Context) (api.Status, error) {
	cfg, snap := d.cfg.Load(), d.engine.Summary(time.Now())
	c, err := d.counters()
	if err != nil {
		return api.Status{}, err
	}
	c.NameRules(snap.Rules)
	s := api.Status{
		Version: d.opt.Version, PID: os.Getpid(), Started: d.started, Uptime: time.Since(d.started), Kernel: kernelRelease(),
		Config: *d.file.Load(), ConfigLoaded: time.Unix(0, d.loadedAt.Load()),
		Cgroup: d.cgroup, Attached: d.dp.AttachedAt(), Adopted: d.dp.Adopted(),
		Lease: cfg.Learning.Lease, Metrics: cfg.Metrics.Listen,
		Mode: snap.Mode, Rollouts: api.RolloutsOf(snap.Rules),
		Features: d.features(), Counters: c, Learner: snap.Learner,
		Arms: snap.Arms, Yields: append(snap.Yields, d.sysctls.yields()...), Totals: snap.Totals, Loaded: d.loaded(), Buffers: d.buffers.state(), HostSysctls: d.profile.state(), HostRoutes: d.profile.routeState(),
		Pods: d.podStatus(),
	}
	s.Problems = d.problems()
	if e := d.reloadErr.Load(); e != nil {
		s.ConfigError = *e
	}
	if keys := d.needRestart.Load(); keys != nil {
		s.NeedRestart = *keys
	}
	s.SetDegraded()
	return s, nil
}

// SetRollout implements api.Backend.
func (d *Daemon) SetRollout(_ context.Context, r api.RolloutRequest) (api.RuleRollout, error) {
	if err := d.engine.SetRollout(r.Rule, r.Share, time.Now().UnixNano()); err != nil {
		return api.RuleRollout{}, api.NotFound("%v", err).WithHint("see 'tcpilot rollout list'")
	}
	for _, rule := range d.engine.Summary(time.Now()).Rules {
		if rule.Name == r.Rule {
			return api.RuleRollout{Rule: r.Rule, Rollout: *rule.Rollout}, nil
		}
	}
	return api.RuleRollout{}, api.NotFound("rule %q is gone: the configuration was reloaded meanwhile", r.Rule).WithHint("see 'tcpilot rollout list'")
}

// problems describes what does not work now.
func (d *Daemon) problems() []string {
	cfg := d.cfg.Load()
	list := append(partProblems(cfg, d.cgroup), timeoutProblems(cfg.Rules, countsTimeouts)...)
	return append(append(append(list, d.buffers.problems()...), d.profile.problems()...), d.tasks.problems()...)
}

// features lists the parts of the datapath, and why one is not active.
func (d *Daemon) features() []api.Feature {
	var out []api.Feature
	for _, f := range d.dp.Features() {
		a := api.Feature{Name: f.Name, Wanted: true, Active: f.Err == nil}
		if f.Err != nil {
			a.Why = f.Err.Error()
		}
		out = append(out, a)
	}
	if d.cfg.Load().Pods.RoutesHost() {
		out = append(out, d.routingFeature())
	}
	if d.cfg.Load().Pods.HasBigTCP() {
		out = append(out, d.bigTCPFeature())
	}
	if d.cfg.Load().Pods.RoutesNodes() {
		out = append(out, d.nodeRoutes.feature())
	}
	out = append(out, d.controls.features()...)
	for _, w := range d.engine.Waiting() {
		out = append(out, api.Feature{
			Name: "rule " + w.Rule, Wanted: true,
			Why: w.Kind + " " + w.Name + " does not exist yet; looked for every 5 s",
		})
	}
	return out
}

// counters converts the datapath's counters for the metrics.
func (d *Daemon) counters() (metrics.Counters, error) {
	raw, err := d.dp.Counters()
	if err != nil {
		return metrics.Counters{}, err
	}
	c := metrics.Counters{Samples: metrics.SampleCount{
		Submitted: raw.Samples, Dropped: raw.SamplesLost, Malformed: raw.SamplesBad, Received: d.received.Load(),
	}, Unseen: metrics.UnseenCount{Untracked: raw.Untracked, Forgotten: raw.Forgotten, Missed: raw.Missed,
		Thinned: raw.Thinned, Backwards: raw.Backwards}, Peer: metrics.PeerCount(raw.Peer)}
	for reason, n := range raw.Decisions {
		c.Decisions = append(c.Decisions, metrics.ReasonCount{Reason: reason, Count: n})
	}
	for f, n := range raw.FieldErrors {
		c.SetErrors = append(c.SetErrors, metrics.FieldCount{Field: f.String(), Count: n})
	}
	for name, n := range raw.CCErrors {
		c.ArmFailures = append(c.ArmFailures, metrics.ArmCount{CC: name.String(), Count: n})
	}
	for _, e := range raw.Events {
		c.Events = append(c.Events, metrics.EventCount{Class: e.Class, Event: e.Name, Count: e.Count})
	}
	c.Controls = d.controls.counts(d.log)
	c.Limits = d.limitCounts()
	c.Buffers = d.buffers.counts()
	c.Pods = d.podCounts()
	c.Packets = d.packetCounts()
	c.Bandwidth, c.PodLimits = d.bandwidthCounts(), d.podLimitCounts()
	c.BigTCP = d.bigTCPCounts()
	c.Host = d.profile.counts()
	progs, err := d.dp.Programs()
	if err != nil {
		return metrics.Counters{}, err
	}
	for _, p := range progs {
		c.Programs = append(c.Programs, programStats(p.Name, p))
	}
	return c, d.classCounts(&c)
}

func programStats(name string, p progstats.Stats) metrics.ProgramStats {
	return metrics.ProgramStats{Name: name, ID: p.ID, Stats: p.RunCount > 0, RunCount: p.RunCount, RunTime: p.RunTime}
}

func (d *Daemon) classCounts(c *metrics.Counters) error {
	classes := []uint32{0}
	for _, r := range d.engine.Summary(time.Now()).Rules {
		classes = append(classes, r.Class)
	}
	counts, err := d.dp.ClassCounts(classes)
	if err != nil {
		return err
	}
	for i, n := range counts {
		c.Connections = append(c.Connections, metrics.ClassCount{Class: classes[i], Outgoing: n.Outgoing, Incoming: n.Incoming})
	}
	return nil
}

// source is the input of the metrics.
func (d *Daemon) source() metrics.Source { return metricSource{d} }

type metricSource struct{ *Daemon }

func (s metricSource) Counters() (metrics.Counters, error) { return s.counters() }

// Reload implements api.Backend.
func (d *Daemon) Reload(ctx context.Context) (api.ReloadResult, error) {
	r := reloadRequest{make(chan reloadAnswer, 1)}
	select {
	case d.reloads <- r:
	case <-d.ended:
		return api.ReloadResult{}, api.Unavailable("the daemon is stopping")
	case <-ctx.Done():
		return api.ReloadResult{}, ctx.Err()
	}
	a := <-r.done
	return a.result, a.err
}

// stopGrace is the time for the answer to a detach request to reach the client.
const stopGrace = 100 * time.Millisecond

// Detach implements api.Backend.
func (d *Daemon) Detach(context.Context) error {
	d.detach.Store(true)
	time.AfterFunc(stopGrace, d.stop)
	return nil
}

// Load implements api.Backend.
func (d *Daemon) Load(_ context.Context, r api.LoadRequest) (api.Loaded, error) {
	if r.Name == "" {
		r.Name = strings.TrimSuffix(filepath.Base(r.File), ".o")
		r.Name = strings.ReplaceAll(r.Name, ".", "_")
	}
	dir, err := cgroupDir(r.Cgroup)
	if err != nil {
		return api.Loaded{}, api.Invalid("%v", err)
	}
	u, err := d.dp.LoadUser(r.Name, r.File, dir)
	if err != nil {
		return api.Loaded{}, api.Invalid("%v", err)
	}
	d.log.Info("user's program attached", "name", u.Name, "file", u.Object, "cgroup", u.Cgroup, "program", u.Program)
	return loadedOf(u), nil
}

// Unload implements api.Backend.
func (d *Daemon) Unload(_ context.Context, name string) error {
	if err := d.dp.UnloadUser(name); errors.Is(err, fs.ErrNotExist) {
		return api.NotFound("no program %q is loaded", name).WithHint("see 'tcpilot prog list'")
	} else if err != nil {
		return err
	}
	d.log.Info("user's program detached", "name", name)
	return nil
}

// Loaded implements api.Backend.
func (d *Daemon) Loaded(context.Context) (api.ProgramList, error) {
	return api.ProgramList{At: time.Now(), Programs: d.loaded()}, nil
}

func (d *Daemon) loaded() []api.Loaded {
	out := []api.Loaded{}
	for _, u := range d.dp.UserObjects() {
		out = append(out, loadedOf(u))
	}
	return out
}

func loadedOf(u datapath.UserObject) api.Loaded {
	stats := programStats(u.Program, progstats.Of(u.ID))
	return api.Loaded{Name: u.Name, File: u.Object, Cgroup: u.Cgroup, Since: u.Since,
		Programs: []api.Program{{ProgramStats: stats, Type: "sock_ops"}}}
}
