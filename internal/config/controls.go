package config

import (
	"fmt"
	"slices"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// ControlList names congestion controls of tcpilot's own; nil is auto, and an empty
// list none.
type ControlList []tcp.CC

// controls decodes the value of congestion_controls.
func (d *decoder) controls(n *yamlfile.Node, list *ControlList) {
	if n.Kind == yamlfile.Text && n.Text == "auto" {
		return
	}
	*list = ControlList{}
	if n.Kind == yamlfile.Text && n.Text == "none" {
		return
	}
	nodes, _ := d.controlNames(n, (*[]tcp.CC)(list))
	for i, e := range nodes {
		if cc := (*list)[i]; !congestion.IsOwn(cc) {
			d.Wrong(e, notOurs(cc.String()))
		}
	}
}

// notOurs is the mistake of a name that is not one of tcpilot's own.
func notOurs(s string) error {
	var names []string
	for _, c := range congestion.Own() {
		names = append(names, c.CC.String())
	}
	near := yamlfile.Nearest(s, names)
	if near == "" {
		near = yamlfile.Nearest(congestion.Prefix+s, names) // bbr3
	}
	return bad(chooseFrom(near, names), "%q is not one of tcpilot's own congestion controls", s)
}

// finishControls resolves auto. It is a mistake if a rule names one of tcpilot's own that
// congestion_controls excludes.
func (c *Config) finishControls(d *decoder, raw *fileRules) {
	if c.CongestionControls == nil {
		c.CongestionControls = autoControls(policy.Wanted(c.Rules))
		return
	}
	if d.broken[&c.CongestionControls] {
		return // a list with mistakes does not show which were meant
	}
	unloaded := func(cc tcp.CC, at yamlfile.Place) {
		if congestion.HasOwnName(cc) && !slices.Contains(c.CongestionControls, cc) {
			d.Fail(at, fmt.Sprintf("%s is not loaded: congestion_controls does not name it", cc),
				"add it there, or write congestion_controls: auto")
		}
	}
	for i := range raw.Rules {
		r := &raw.Rules[i]
		if r.Set != nil {
			unloaded(r.Set.cc, d.at[ccAt{r.Set}])
		}
		if r.OnRTO != nil {
			unloaded(r.OnRTO.CC, d.at[&r.OnRTO.CC])
		}
		if r.Learn != nil {
			for k := range r.Learn.Arms {
				unloaded(r.Learn.Arms[k], d.at[&r.Learn.Arms[k]])
			}
		}
	}
}

// autoControls is the meaning of auto, if rules name the given controls.
func autoControls(named []tcp.CC) ControlList {
	list := ControlList{}
	for _, c := range congestion.Own() {
		if !c.ByName || slices.Contains(named, c.CC) {
			list = append(list, c.CC)
		}
	}
	return list
}
