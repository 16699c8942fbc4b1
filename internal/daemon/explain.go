package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Live connections are shown if they were sampled within the latest liveAge intervals, at
// most liveShown of them.
const (
	liveAge   = 3
	liveShown = 8
)

// Explain implements api.Backend.
func (d *Daemon) Explain(_ context.Context, r api.ExplainRequest) (api.Explanation, error) {
	asked := r
	if r.Pod != "" {
		p := d.pods.now().ByName(r.Pod)
		if p == nil {
			return api.Explanation{}, api.NotFound("no pod %q", r.Pod).WithHint("see 'tcpilot pods'")
		}
		r.NetNS = p.Cookie
	}
	conn, notes, err := explainConn(r)
	if err != nil {
		return api.Explanation{}, err
	}
	now := time.Now()
	e := d.engine.Explain(&conn, now)
	out := api.Explanation{Request: asked, Pod: d.PodName(conn.NetNS), Fields: []api.FieldWhy{}, Arms: []api.ArmWeight{}, Notes: notes, Mode: d.engine.Mode()}
	out.Live = d.live.Of(conn.Remote, now.Add(-liveAge*d.cfg.Load().Interval), liveShown)
	for i := range out.Live {
		out.Live[i].Pod = d.PodName(out.Live[i].NetNS)
	}
	if e.Rule == nil {
		out.RateLimit = d.explainLimit("", &conn)
		out.Reason, out.Why = policy.NoRule.String(), "no rule matches: kernel defaults"+pacedAnyway(out.RateLimit)
		return out, nil
	}
	out.RateLimit = d.explainLimit(e.Rule.Name, &conn)
	switch {
	case e.Rule.Action == "leave":
		out.Reason, out.Why = policy.LeftAlone.String(), "rule "+e.Rule.Name+" leaves the connection alone"+pacedAnyway(out.RateLimit)
	case e.Entry == nil:
		out.Reason, out.Why = policy.NewPath.String(), "no policy is written for the class yet: kernel defaults"
	}
	out.Rule, out.Class, out.Match, out.Action = e.Rule.Name, e.Rule.Class, e.Rule.Match, e.Rule.Action
	out.OnRTO = e.Rule.OnRTO
	out.Rollout, out.Network = e.Rule.Rollout, e.Network
	if e.Entry == nil {
		return out, nil
	}
	explainEntry(&out, &e, now)
	d.explainYields(&out, &e, conn.NetNS)
	return out, nil
}

// pacedAnyway is what a connection gets that no rule gives anything: only the limit of its pod.
func pacedAnyway(l *api.RateLimit) string {
	if l == nil {
		return ""
	}
	return ", but it is paced to a share of the pod's limit"
}

func explainEntry(out *api.Explanation, e *engine.Explanation, now time.Time) {
	p := e.Entry
	none := out.Mode == engine.ModeObserve || out.Rollout != nil && out.Rollout.Share == 0 // all connections are held out
	out.Reason, out.Why = p.Reason, reasonText(p.Reason)
	out.Entry = &api.Entry{
		Prefix: p.Prefix, Scope: p.Scope, PolicyID: p.PolicyID, Reason: p.Reason,
		Expires: p.Expires, Expired: now.After(p.Expires),
	}
	for _, s := range p.Set {
		computed := s.Computed()
		byObjective := s.Reason == policy.ByObjective.String()
		f := api.FieldWhy{Setting: s, Applied: computed || byObjective || s.Reason == policy.ByRule.String()}
		switch {
		case byObjective:
			f.Why = "the default of objective " + e.Rule.Objective + ", which rule " + e.Rule.Name + " has; an application's own value is kept"
		case !computed:
			f.Why = "rule " + e.Rule.Name + " sets it"
		}
		switch {
		case !f.Applied:
			f.Why = reasonText(s.Reason)
		case p.LeftToDefault != nil && !computed:
			f.Applied, f.Reason = false, policy.WorseThanDefault.String()
			f.Why = reasonText(f.Reason)
		case none && (computed || byObjective):
			f.Applied = false
		case none:
			f.Applied, f.Why = false, "rule "+e.Rule.Name+" would set it"
		}
		out.Fields = append(out.Fields, f)
	}
	for _, k := range p.Kernel {
		reason := policy.FromMetrics
		if p.LeftToDefault != nil {
			reason = policy.WorseThanDefault
		}
		out.Fields = append(out.Fields, api.FieldWhy{Setting: engine.Setting{Field: k.Field, Reason: reason.String(), Why: k.Why}, Kernel: true})
	}
	for _, a := range p.Arms {
		if a.Weight > 0 || a.Retired != nil {
			out.Arms = append(out.Arms, api.ArmWeight{CC: a.CC, Weight: a.Weight, Why: armText(&a, e.Rule)})
		}
	}
	out.HoldOut = p.HoldOut.Share
	if !e.IsRoot {
		out.Path = p
	} else if b := p.LeftToDefault; b != nil {
		out.Why += fmt.Sprintf(" (the rule, until %s): %s", b.Until.Format(time.TimeOnly), b.Why)
	}
}

// explainYields removes the settings that the network namespace of the connection owns,
// unless the rule names a namespace, a pod or a cgroup.
func (d *Daemon) explainYields(out *api.Explanation, e *engine.Explanation, netns uint64) {
	if r := ruleNamed(d.engine.Rules(), e.Rule.Name); r != nil && r.Match.Named() {
		return
	}
	cc, fields := d.sysctls.ownedBy(d.engine, netns)
	for i := range out.Fields {
		if f, ok := tcp.FieldByName(out.Fields[i].Field); ok && fields&(1<<f) != 0 {
			out.Fields[i].Applied = false
			out.Fields[i].Reason = policy.YieldedSysctl.String()
			out.Fields[i].Why = reasonText(out.Fields[i].Reason)
		}
	}
	if cc && len(out.Arms) > 0 {
		out.Reason, out.Arms = policy.YieldedSysctl.String(), []api.ArmWeight{}
		out.Why = reasonText(out.Reason)
	}
}

func armText(a *engine.PathArm, rule *engine.RuleState) string {
	if rule.CC == a.CC && a.CC != (tcp.CC{}) {
		return "rule " + rule.Name + " sets it"
	}
	if r := a.Retired; r != nil {
		return fmt.Sprintf("retired on this path until %s (%s): %s", r.Until.Format(time.TimeOnly), r.Guard, r.Why)
	}
	what := ""
	if a.Default {
		what = "the default, for which nothing is set: "
	}
	if a.Count == 0 {
		return what + "not tried on this path yet"
	}
	return what + fmt.Sprintf("%s scored, believed reward %.2f ± %.2f (natural log)", console.Plural(int(a.Count), "connection"), a.Mean, a.StdDev)
}

// explainConn turns a request into the connection that rules match.
func explainConn(r api.ExplainRequest) (c class.Conn, notes []string, err error) {
	c = class.Conn{
		Remote: r.Remote.Unmap(), Local: r.Local.Unmap(), RemotePort: r.RemotePort, LocalPort: r.LocalPort,
		NetNS: r.NetNS, Outgoing: !r.Incoming,
	}
	if !c.Remote.IsValid() {
		return c, nil, api.Invalid("explain: no remote address")
	}
	if !c.Local.IsValid() {
		notes = append(notes, "no local address given: rules with a condition on it may not match")
	}
	if r.NetNS == 0 {
		if cookie, err := netns.Cookie(""); err == nil {
			c.NetNS = cookie
		}
	}
	if r.Cgroup == "" {
		notes = append(notes, "no cgroup given: rules with a condition on it do not match")
		return c, notes, nil
	}
	c.Cgroups, err = withAncestors(r.Cgroup)
	if err != nil {
		return c, nil, api.Invalid("explain: %v", err)
	}
	return c, notes, nil
}

// withAncestors lists the ids of a cgroup and of its ancestors.
func withAncestors(path string) (ids []uint64, err error) {
	root, err := cgroup.Root()
	if err != nil {
		return nil, err
	}
	dir, err := cgroup.Dir(path)
	if err != nil {
		return nil, err
	}
	for {
		id, err := cgroup.ID(dir)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
		if dir == root {
			return ids, nil
		}
		dir = filepath.Dir(dir)
	}
}

// reasonText is a sentence for a reason.
func reasonText(reason string) string {
	switch reason {
	case policy.ByRule.String():
		return "the rule sets it, without learning"
	case policy.ByObjective.String():
		return "a default of the rule's objective"
	case policy.NewPath.String():
		return "nothing is known of this path yet: the default is in use, and others will be tried when connections have been scored"
	case policy.Inherited.String():
		return "nothing is known of this path yet: what was learned on the enclosing prefix is used"
	case policy.Exploring.String():
		return "arms are still being compared on this path"
	case policy.Learned.String():
		return "one arm is shown to be better than the default on this path"
	case policy.DefaultBest.String():
		return "the default is in use: no arm is shown to be better on this path"
	case policy.WorseThanDefault.String():
		return "connections did worse than the hold-out: left to the default for now"
	case policy.ChangeDetected.String():
		return "the path has changed: arms are being compared again"
	case policy.YieldedSysctl.String():
		return "the administrator changed the sysctl that gives the default: left to the kernel"
	case policy.ArmRetired.String():
		return "the kernel does not offer, or refused, the congestion controls that the rule wants, or they did harm on this path"
	}
	return reason
}
