package engine

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// snapshotAge is how old a snapshot may be before a reader gets a new one.
const snapshotAge = time.Second

// Snapshot returns the engine's state, at most a second old.
func (e *Engine) Snapshot(now time.Time) *Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snapshot == nil || now.Sub(e.snapshot.At) >= snapshotAge || now.Before(e.snapshot.At) {
		e.snapshot = e.view(now)
	}
	return e.snapshot
}

// View returns the engine's state as of now.
func (e *Engine) View(now time.Time) *Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.snapshot = e.view(now)
	return e.snapshot
}

func (e *Engine) view(now time.Time) *Snapshot {
	s := &Snapshot{
		At: now, Started: e.started, Learner: e.opt.Learner.Name(),
		Rules: make([]RuleState, 0, len(e.byRule)), Arms: make([]ArmState, 0, len(e.arms)),
		Yields: make([]Yield, 0, len(e.yields)), Paths: make([]*PathState, 0, len(e.nodes)),
		Totals: e.viewTotals(),
	}
	for _, rs := range e.byRule {
		s.Rules = append(s.Rules, e.viewRule(rs))
	}
	for _, a := range e.arms {
		s.Arms = append(s.Arms, *a)
	}
	slices.SortFunc(s.Arms, func(a, b ArmState) int { return cmp.Compare(a.CC.String(), b.CC.String()) })
	for _, y := range e.yields {
		s.Yields = append(s.Yields, y)
	}
	slices.SortFunc(s.Yields, func(a, b Yield) int { return cmp.Compare(a.Sysctl, b.Sysctl) })
	for _, n := range e.nodes {
		if n.parent != nil {
			s.Paths = append(s.Paths, e.viewPath(n, now))
		}
	}
	slices.SortFunc(s.Paths, func(a, b *PathState) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Rule, b.Rule), a.Key.Prefix.Addr().Compare(b.Key.Prefix.Addr()),
			cmp.Compare(a.Key.Prefix.Bits(), b.Key.Prefix.Bits()), cmp.Compare(a.Scope, b.Scope))
	})
	return s
}

func (e *Engine) viewTotals() Totals {
	t := e.totals
	t.Samples, t.Ignored, t.Decisions = map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
	for k := tcp.KindClose; k <= tcp.KindFailedConnect; k++ {
		t.Samples[k.String()] = e.kinds[k]
	}
	for i, n := range e.ignored {
		if n > 0 {
			t.Ignored[learn.Ignored(i).String()] = n
		}
	}
	if e.noArm > 0 {
		t.Ignored["no-arm"] = e.noArm
	}
	for r, n := range e.reasons {
		t.Decisions[r.String()] = n
	}
	t.Paths, t.PathLimit = e.byUse.Len(), e.opt.Limit
	return t
}

func (e *Engine) viewRule(rs *ruleState) RuleState {
	r := rs.rule
	s := RuleState{
		Name: r.Name, Class: rs.class, Match: r.Match.String(), Action: r.Action(),
		Set: e.settings(r), Paths: rs.paths, Samples: rs.samples,
	}
	if r.CC != (tcp.CC{}) {
		s.Arms = []tcp.CC{r.CC}
	}
	if l := r.Learn; l != nil {
		s.Arms, s.Objective, s.HoldOut = l.Arms, l.Objective.String(), l.HoldOut
		if s.Arms == nil {
			s.Arms = slices.DeleteFunc(slices.Clone(e.offered), isECNOnly)
		}
	}
	return s
}

// settings lists the fixed fields of a rule with the reason for each.
func (e *Engine) settings(r *policy.Rule) []Setting {
	var out []Setting
	in := policy.Input{Rule: r, YieldFields: e.yieldFs}
	for _, f := range r.Set.Fields() {
		v, why, _ := in.Field(f)
		out = append(out, Setting{Field: f.String(), Value: v, Unit: tcp.Fields[f].Unit.String(), Reason: why.String()})
	}
	return out
}

func (e *Engine) viewPath(n *node, now time.Time) *PathState {
	b := &n.belief
	p := &PathState{
		Key: n.key, Rule: n.rule.rule.Name, Scope: n.key.Scope, Prefix: n.key.Prefix.String(),
		PolicyID: n.id, Reason: n.reason.String(), Expires: time.Unix(0, n.expires), LastUsed: time.Unix(0, n.lastUsed),
		Samples: n.samples, Set: e.settings(n.rule.rule),
		MinRTT: micros(b.MinRTT), SRTT: micros(n.srtt), Rate: float64(b.Rate),
		Arms: make([]PathArm, 0, len(b.Arms)),
	}
	for _, a := range n.policy.arms[:n.policy.num] {
		p.Arms = append(p.Arms, e.viewArm(b, a.CC, float64(a.Weight)/policy.One, now))
	}
	for i := range b.Arms { // known from before, not chosen from now
		if cc := b.Arms[i].CC; !slices.ContainsFunc(p.Arms, func(a PathArm) bool { return a.CC == cc }) {
			p.Arms = append(p.Arms, e.viewArm(b, cc, 0, now))
		}
	}
	p.HoldOut = viewHoldOut(n)
	return p
}

func (e *Engine) viewArm(b *learn.Belief, cc tcp.CC, weight float64, now time.Time) PathArm {
	out := PathArm{CC: cc, Weight: weight}
	for i := range b.Arms {
		if a := &b.Arms[i]; a.CC == cc {
			out.Count, out.Greedy, out.Mean = a.Count, a.Greedy, a.Mean
			out.StdDev = e.opt.Learner.StdDev(a, now.UnixNano())
			out.MinRTT, out.Rate, out.LastUsed = a.MinRTT, a.Rate, a.Last
		}
	}
	if math.IsInf(out.StdDev, 0) || math.IsNaN(out.StdDev) {
		out.StdDev = 0
	}
	return out
}

func viewHoldOut(n *node) PathHoldOut {
	h := PathHoldOut{Share: float64(n.policy.holdOut) / policy.One, Count: n.belief.HoldOut.Count}
	if n.heldN > 0 {
		h.Mean = n.heldSum / n.heldN
	}
	if n.treatedN > 0 {
		h.Treated = n.treatedSum / n.treatedN
	}
	if n.heldN > 0 && n.treatedN > 0 {
		h.Gain = math.Exp(h.Treated - h.Mean)
	}
	return h
}

func micros(us uint32) time.Duration { return time.Duration(us) * time.Microsecond }
