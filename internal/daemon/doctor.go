package daemon

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cc"
	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/poddevice"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Doctor implements api.Backend.
func (d *Daemon) Doctor(_ context.Context, again bool) (api.Doctor, error) {
	rows, err := d.controls.List()
	if err != nil {
		return api.Doctor{}, err
	}
	doc, err := d.diagnoses.latest(again, d.cfg.Load().Rules)
	if err != nil {
		return doc, err
	}
	addControls(&doc, rows)
	doc.Cgroup, doc.Features, doc.Yields = d.cgroup, d.features(), append(d.engine.Summary(time.Now()).Yields, d.sysctls.yields()...)
	if !d.cfg.Load().Pods.RoutesHost() {
		doc.Features = append(doc.Features, triedRouting(false))
	}
	if !d.cfg.Load().Pods.HasBigTCP() {
		doc.Features = append(doc.Features, triedBigTCP(false))
	}
	doc.Conflicts = conflicts(d.cgroup, d.dp.ProgramIDs())
	doc.Problems, doc.Removal = d.problems(), pluginRemoval(d.pods.records)
	return doc, nil
}

// Doctor tests what the kernel supports while no daemon runs.
func Doctor(file string) (api.Doctor, error) {
	cfg, _, err := loadConfig(file)
	if err != nil {
		return api.Doctor{}, err
	}
	rows, err := tryControls()
	if err != nil {
		return api.Doctor{}, err
	}
	doc, err := diagnose(cfg.Rules)
	if err != nil {
		return doc, err
	}
	addControls(&doc, rows)
	if doc.Cgroup, err = cgroupDir(cfg.Cgroup); doc.Cgroup == "" {
		return doc, err
	}
	if err != nil {
		doc.Problems = append(doc.Problems, err.Error())
	}
	doc.Conflicts = conflicts(doc.Cgroup, nil)
	doc.Problems = append(append(doc.Problems, partProblems(cfg, doc.Cgroup)...), timeoutProblems(cfg.Rules, countsTimeouts)...)
	doc.Removal = pluginRemoval(podrecord.Dir(cfg.Pods.Dir))
	doc.Features = []api.Feature{}
	for _, f := range datapath.TryLoad() {
		a := api.Feature{Name: f.Name, Wanted: true, Active: f.Err == nil}
		if f.Err != nil {
			a.Why = f.Err.Error()
		}
		doc.Features = append(doc.Features, a)
	}
	doc.Features = append(doc.Features, triedRouting(cfg.Pods.RoutesHost()), triedBigTCP(cfg.Pods.HasBigTCP()))
	for _, name := range cfg.CongestionControls {
		doc.Features = append(doc.Features, controlFeature(name, whyAbsent(rows, name)))
	}
	return doc, nil
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return string(bytes.TrimRight(u.Release[:], "\x00"))
}

// ownCgroup is the cgroup of this process, for programs that must see only its own
// connections.
func ownCgroup() (string, error) {
	path, err := cgroup.OfProcess(os.Getpid())
	if err != nil {
		return "", err
	}
	return cgroup.Dir(path)
}

// diagnoses keeps the latest diagnosis, because making one is expensive and may load modules.
type diagnoses struct {
	mu   sync.Mutex
	last *api.Doctor
}

// latest returns the latest diagnosis; a new one if requested, or if there is none yet.
func (k *diagnoses) latest(again bool, rules []policy.Rule) (api.Doctor, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if again || k.last == nil {
		doc, err := diagnose(rules)
		if err != nil {
			return doc, err
		}
		k.last = &doc
	}
	doc := *k.last
	doc.Arms.Missing = maps.Clone(doc.Arms.Missing) // addControls extends it
	return doc, nil
}

// diagnose tests what the kernel supports, including the congestion controls that rules
// name.
func diagnose(rules []policy.Rule) (api.Doctor, error) {
	doc := api.Doctor{Kernel: kernelRelease()}
	missing := tryModules(rules)
	names, err := kernelcc.Available()
	if err != nil {
		return doc, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == cc.TestName || congestion.IsWindowSetter(name) })
	doc.Arms = engine.Arms{Active: parseCCs(names), Retired: map[tcp.CC]string{}, Missing: map[tcp.CC]string{}}
	for name, err := range missing {
		doc.Arms.Missing[name] = err.Error()
	}
	own, err := ownCgroup()
	if err != nil {
		return doc, err
	}
	verdicts, err := datapath.Probe(own, parseCCs(names))
	if err != nil {
		return doc, err
	}
	for _, r := range host.CheckReady() {
		doc.Ready = append(doc.Ready, api.Readiness(r))
	}
	for _, v := range verdicts {
		o := api.OptionCheck{Field: v.Option, Option: v.Kernel, Hook: string(v.Hook), Accepted: v.Err == nil}
		if v.Err != nil {
			o.Error = v.Err.Error()
		}
		doc.Options = append(doc.Options, o)
	}
	for _, s := range poddevice.Try() {
		d := api.PodDevice{Device: string(s.Device), Available: s.Err == nil}
		if s.Err != nil {
			d.Why = s.Err.Error()
		}
		doc.PodDevices = append(doc.PodDevices, d)
	}
	return doc, nil
}

// addControls adds the congestion controls in BPF that are not registered.
func addControls(doc *api.Doctor, rows []cc.Control) {
	for _, row := range rows {
		switch {
		case slices.Contains(doc.Arms.Active, row.CC):
		case row.State == cc.Absent:
			doc.Arms.Missing[row.CC] = row.Why
		default:
			doc.Arms.Available = append(doc.Arms.Available, row.CC)
		}
	}
}

// sockopsName is the name that the kernel has of tcpilot's program (bpf/sockops/sockops.bpf.c).
const sockopsName = "tcpilot_sockops"

// conflicts lists the sock_ops programs of others where ours are attached, and above.
func conflicts(attached string, ours []uint32) []api.Conflict {
	out := []api.Conflict{}
	root, err := cgroup.Root()
	if err != nil {
		return out
	}
	for dir := attached; strings.HasPrefix(dir, root); dir = filepath.Dir(dir) {
		for _, p := range datapath.OtherSockops(dir, ours) {
			if p.Name == sockopsName {
				out = append(out, api.Conflict{
					Kind: "leftover", What: p.String() + " on " + dir,
					Advice: "if its daemon has ended, 'tcpilot run' adopts it, and 'tcpilot detach --config FILE' removes it, each with that daemon's " +
						"configuration; if it runs, what both set is of the one that runs last: then stop one of them",
				})
				continue
			}
			out = append(out, api.Conflict{
				Kind: "program", What: p.String() + " on " + dir,
				Advice: "if both set the same option, the one that runs last takes effect: then stop one of them",
			})
		}
	}
	return out
}
