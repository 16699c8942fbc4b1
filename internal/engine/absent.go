package engine

import (
	"maps"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/policy"
)

// absent is what is known of variants of rules that are not in force now, by name: their comparisons, and that a guard took their
// rollout back. Variants come and go with the pods that ask for them, also over restarts.
type absent map[string]StoredPath

// mostAbsent bounds them: as many as rules.
const mostAbsent = class.MaxRules

// keep keeps what is known of a rule in place of what was kept before, if it is a variant.
func (a absent) keep(m StoredPath) {
	delete(a, m.Rule)
	known := m.RolledBack != nil || m.comparisons() != (comparisons{})
	if _, is := policy.VariantOf(m.Rule); !is || !known {
		return
	}
	if a[m.Rule] = m; len(a) > mostAbsent {
		oldest := m.Rule
		for name := range a {
			if a[name].LastUsed < a[oldest].LastUsed {
				oldest = name
			}
		}
		delete(a, oldest)
	}
}

// configure forgets variants of rules that the configuration does not have any more.
func (a absent) configure(rules *ruleSet) {
	maps.DeleteFunc(a, func(name string, _ StoredPath) bool {
		of, _ := policy.VariantOf(name)
		return of != "" && rules.named(of) == nil
	})
}

// comesBack restores what is known of a rule that is about to come into force.
func (e *Engine) comesBack(rs *ruleState) {
	if m, ok := e.absent[rs.rule.Name]; ok {
		e.restoreRule(rs, m)
	}
}
