package policy

import (
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// objectiveDefaults are what an objective sets, and the bounds of what is adapted, if the rule names
// neither. docs/design/0017-objectives.md has what each was measured by.
var objectiveDefaults = map[learn.Objective]struct{ set, bounds []value }{
	learn.Latency: {
		set: []value{{tcp.NotsentLowat, 64 << 10}},
	},
	learn.Realtime: {
		set:    []value{{tcp.NotsentLowat, 16 << 10}},
		bounds: []value{{tcp.RTOMin, 25_000}},
	},
}

// value is that of a field, in its unit.
type value struct {
	field tcp.Field
	v     uint64
}

// UseObjective gives the rule the defaults of its objective, for what it does not name: values in
// Set, and bounds of what it adapts.
func (r *Rule) UseObjective() {
	if r.Learn == nil {
		return
	}
	o := objectiveDefaults[r.Learn.Objective]
	for _, d := range o.set {
		r.useDefault(&r.Set, d)
	}
	for _, d := range o.bounds {
		if r.Adapts(d.field) {
			r.useDefault(&r.Bounds, d)
		}
	}
}

func (r *Rule) useDefault(p *tcp.Params, d value) {
	if _, named := p.Get(d.field); !named {
		p.Set(d.field, d.v)
		r.ByObjective |= 1 << d.field
	}
}

// Source is the reason why the rule has its value, or bound, of f: ByRule or ByObjective.
func (r *Rule) Source(f tcp.Field) Reason {
	if r.ByObjective&(1<<f) != 0 {
		return ByObjective
	}
	return ByRule
}
