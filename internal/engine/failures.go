package engine

import (
	"fmt"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// A connection that fails has no outcome: it was never established, or says nothing of speed.
// So the share that fails is compared with the hold-out's separately, for the rule and for each path
// on which a connection failed. All ends but an orderly one count, whoever caused them: what tcpilot
// does not cause affects the hold-out as well.

// compareFailures updates the comparison of failures by a connection that ended. leaf is its
// path, or the root of its rule if that has no path.
func (e *Engine) compareFailures(rs *ruleState, leaf *node, s *tcp.Sample) {
	if s.Kind != tcp.KindClose && s.Kind != tcp.KindFailedConnect || !e.comparable(rs, s) {
		return
	}
	from := leaf.policyNode()
	by := assignmentOf(s)
	weight := from.policy.inverseShare(by) * float64(max(1, s.StandsFor))
	if weight == 0 || leaf.leftToDefault(s.At) {
		return
	}
	failed, slice := hasFailed(s), int64(0)
	if shift := from.policy.slice; shift != 0 {
		at := s.At
		if !s.Has(tcp.FlagLater) { // otherwise it is not known when the connection began
			at -= int64(s.Duration)
		}
		slice = at >> shift << shift
	}
	atOnce := leaf.sliceLifetimes().atOnce()
	for m := leaf; m != nil; m = m.above() {
		switch {
		case m.failures != nil:
			m.failures.Add(failed, by, weight, slice, s.At, atOnce)
			e.saves.add(m)
		case m == rs.root:
			m.failures = &learn.Failures{}
			m.failures.Add(failed, by, weight, slice, s.At, atOnce)
			e.saves.add(m)
		case failed:
			// Most paths need no memory for this. The first failure begins the count, and is not
			// counted itself, because that would bias it.
			m.failures = &learn.Failures{}
			e.saves.add(m)
		}
	}
	if !failed || by != learn.Treated {
		return // nothing looks worse than before
	}
	for m := leaf; m != nil; m = m.above() {
		if m.failures == nil {
			continue
		}
		if f, worse := m.failures.Harm(); worse {
			e.backToDefault(m, whyFailing(f), s.At)
			return
		}
	}
}

// hasFailed reports whether a connection did not end in order.
func hasFailed(s *tcp.Sample) bool {
	return s.Kind == tcp.KindFailedConnect || s.End != tcp.EndFin && s.End != tcp.EndNone
}

func whyFailing(f learn.FailureShares) string {
	return fmt.Sprintf("%.3g %% of connections failed or were aborted, with the default %.3g %%, over %.0f slices of time and %.0f %s held out",
		100*f.TreatedShare, 100*f.HeldOutShare, f.Treated, f.HeldOut, f.BySlice)
}

// inverseShare is the inverse of the share of connections that a policy assigns to a group; 0 if
// it assigns none.
func (w *written) inverseShare(by learn.Assignment) float64 {
	slices, single := float64(w.slices)/policy.One, float64(w.holdOut)/policy.One
	share := (1 - slices) * (1 - single)
	switch by {
	case learn.HoldOutSlice:
		share = slices
	case learn.HoldOutConnection:
		share = (1 - slices) * single
	}
	if share <= 0 {
		return 0
	}
	return 1 / share
}
