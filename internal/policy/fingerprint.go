package policy

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Treatment identifies what a rule gives to its connections. What was measured with one
// treatment says nothing about another one.
func (r *Rule) Treatment() string { return digest(r.treatment()) }

// Fingerprint identifies a rule by all that decides which connections get what, and how many of
// them.
func (r *Rule) Fingerprint() string {
	var holdOut float64
	var ownScope bool
	if r.Learn != nil {
		holdOut, ownScope = r.Learn.HoldOut, r.Learn.OwnScope
	}
	return digest(fmt.Sprint(r.Name, r.Leave, r.Match, r.RolloutShare(), holdOut, ownScope), r.treatment())
}

func (r *Rule) treatment() string {
	var b strings.Builder
	fmt.Fprint(&b, values(&r.Set), r.CC, r.Adapt, values(&r.Bounds), r.Limit)
	if r.OnRTO != (OnRTO{}) {
		fmt.Fprint(&b, " on_rto ", r.OnRTO)
	}
	if l := r.Learn; l != nil {
		fmt.Fprint(&b, " learn ", l.Arms, l.Arms == nil, l.Objective, l.SwitchRunning)
	}
	return b.String()
}

// values names the fields, whose numbers may change with the version.
func values(p *tcp.Params) (list []string) {
	for _, f := range p.Fields() {
		v, _ := p.Get(f)
		list = append(list, fmt.Sprint(f, "=", v))
	}
	return list
}

func digest(parts ...string) string {
	h := fnv.New64a()
	for _, s := range parts {
		_, _ = h.Write([]byte(s)) // never fails
	}
	return fmt.Sprintf("%016x", h.Sum64())
}
