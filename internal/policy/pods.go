package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// ControlAnnotation is the annotation of a pod that fixes the congestion control of its connections.
const ControlAnnotation = "tcpilot.io/congestion-control"

// profileAnnotation is the annotation of a pod that names a profile: rules are for it by a condition on its value.
const profileAnnotation = "tcpilot.io/profile"

// UnknownProfile says what is wrong with the profile that a pod names: no rule with a condition on it is for the
// pod. It is empty if nothing is, or the pod names none.
func UnknownProfile(rules []Rule, p *pod.Pod) string {
	profile, named := p.Annotations[profileAnnotation]
	if !named {
		return ""
	}
	for i := range rules {
		if m := rules[i].Match.Pod; m != nil && m.Annotations[profileAnnotation] != "" && m.Match(p) {
			return ""
		}
	}
	return fmt.Sprintf("annotation %s: no rule for this pod has the profile %.40q", profileAnnotation, profile)
}

// WithPodControls adds what pods ask for by ControlAnnotation; ccs are the values that pods have now.
// Before each rule it puts a variant for each value, which matches those connections of the rule whose
// pod has the value. A variant fixes the congestion control, so it learns and adapts nothing; otherwise
// it is like the rule. Connections of these pods that no rule matches get a rule at the end. Rules that
// leave their connections alone have no variants.
//
// The name of a variant is that of the rule, an @, and the congestion control: no rule of a file
// has an @ in its name.
func WithPodControls(rules []Rule, ccs []tcp.CC) ([]Rule, error) {
	if len(ccs) == 0 {
		return rules, nil
	}
	var out []Rule
	rest := true // some connections may match none of rules
	for i := range rules {
		for _, cc := range ccs {
			if m, ok := withControl(rules[i].Match.Pod, cc); ok && !rules[i].Leave {
				out = append(out, variant(&rules[i], m, cc))
			}
		}
		out = append(out, rules[i])
		rest = rest && uncoveredDims(&rules[i].Match, &Match{}) != 0
	}
	if rest {
		for _, cc := range ccs {
			out = append(out, Rule{Name: "@" + cc.String(), Builtin: true, CC: cc, Match: Match{Pod: &pod.Match{Annotations: asks(cc)}}})
		}
	}
	if len(out) > class.MaxRules {
		return nil, fmt.Errorf("%d rules and %d congestion controls that pods ask for make %d rules, at most %d fit", len(rules), len(ccs), len(out), class.MaxRules)
	}
	return out, nil
}

// VariantOf returns the rule that a rule is a variant of, by its name; empty if it is one for connections that match no rule.
func VariantOf(name string) (rule string, is bool) {
	rule, _, is = strings.Cut(name, "@")
	return rule, is
}

func variant(r *Rule, m *pod.Match, cc tcp.CC) Rule {
	v := *r
	v.Name, v.Of, v.Builtin = r.Name+"@"+cc.String(), r.Name, true
	v.Match.Pod, v.CC = m, cc
	v.Learn, v.Adapt, v.Bounds, v.OnRTO = nil, nil, tcp.Params{}, OnRTO{}
	return v
}

// asks is the annotation by which a pod asks for cc.
func asks(cc tcp.CC) map[string]string { return map[string]string{ControlAnnotation: cc.String()} }

// withControl selects the pods of m, nil being all, that ask for cc; not ok: there can be none.
func withControl(m *pod.Match, cc tcp.CC) (both *pod.Match, ok bool) {
	if m == nil {
		m = &pod.Match{}
	}
	if g, here := m.Annotations[ControlAnnotation]; here {
		only := pod.Match{Annotations: map[string]string{ControlAnnotation: g}}
		if !only.Match(&pod.Pod{Annotations: asks(cc)}) {
			return nil, false
		}
	}
	both = &pod.Match{Namespace: slices.Clone(m.Namespace), Name: slices.Clone(m.Name), Annotations: maps.Clone(m.Annotations)}
	if both.Annotations == nil {
		both.Annotations = map[string]string{}
	}
	maps.Copy(both.Annotations, asks(cc))
	return both, true
}
