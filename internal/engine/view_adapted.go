package engine

import (
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// adapted lists the values that were computed from the metrics of n.
func (v *viewer) adapted(n *node) (out []Setting) {
	in := v.e.input(n, v.now.UnixNano())
	for _, f := range policy.Adaptive {
		if v.inUse(n, f) {
			s := setting(f, n.policy.adapted.Value(f), policy.FromMetrics)
			s.Why = in.WhyAdapted(f, n.policy.adapted)
			out = append(out, s)
		}
	}
	return out
}

// inUse reports whether connections with the policy of n get an adapted value of a field.
func (v *viewer) inUse(n *node, f tcp.Field) bool {
	return n.policy.adapted.Value(f) != 0 && (!policy.RaisesWindow(f) || n.policy.windowExpires > v.now.UnixNano())
}

// leftToKernel lists the fields that the rule adapts and whose values connections of n have from the
// kernel. from is the node with their policy. A root has no metrics: if nothing is adapted to n, the
// policy is the root's, but the reasons are in the metrics of n.
func (v *viewer) leftToKernel(from, n *node) (out []KernelField) {
	about := from
	if from.isRoot() {
		about = n
	}
	in := v.e.input(about, v.now.UnixNano())
	for _, f := range policy.Adaptive {
		if r := n.rule.rule; r.Adapts(f) && !v.inUse(from, f) {
			out = append(out, KernelField{Field: f.String(), Why: in.WhyKernel(f)})
		}
	}
	return out
}
