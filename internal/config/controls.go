package config

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// ControlList names congestion controls of tcpilot's own; nil is auto, and an empty
// list none.
type ControlList []tcp.CC

// controls decodes the value of congestion_controls.
func (d *decoder) controls(n ast.Node, name string, list *ControlList) {
	if _, isList := yamlfile.Items(n); !isList {
		text, ok := d.scalar(n, name)
		switch {
		case !ok || text == "auto":
			return
		case text == "none":
			*list = ControlList{}
			return
		}
	}
	ccs := []tcp.CC{}
	before := len(d.errs)
	d.slice(n, name, target{value: reflect.ValueOf(&ccs).Elem()})
	*list = ccs
	if len(d.errs) != before {
		return
	}
	for i, e := range d.list(n) {
		switch {
		case !congestion.IsOwn(ccs[i]):
			err := notOurs(ccs[i].String())
			d.fail(yamlfile.Begin(e), name, err.problem, err.whatToDo)
		case slices.Contains(ccs[:i], ccs[i]):
			d.fail(yamlfile.Begin(e), name, fmt.Sprintf("%s is in the list twice", ccs[i]), "remove one of them")
		}
	}
}

// notOurs is the mistake of a name that is not one of tcpilot's own.
func notOurs(s string) *valueError {
	var names []string
	for _, c := range congestion.Own() {
		names = append(names, c.CC.String())
	}
	near := Nearest(s, names)
	if near == "" {
		near = Nearest(congestion.Prefix+s, names) // bbr3
	}
	return &valueError{fmt.Sprintf("%q is not one of tcpilot's own congestion controls", s), chooseFrom(near, names)}
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
	unloaded := func(cc tcp.CC, at yamlfile.Position, name string) {
		if congestion.HasOwnName(cc) && !slices.Contains(c.CongestionControls, cc) {
			d.fail(at, name, fmt.Sprintf("%s is not loaded: congestion_controls does not name it", cc),
				"add it there, or write congestion_controls: auto")
		}
	}
	for i := range raw.Rules {
		r, name := &raw.Rules[i], fmt.Sprintf("rules[%d]", i)
		if r.Set != nil {
			unloaded(r.Set.cc, d.at[ccAt{r.Set}], name+".set.cc")
		}
		if r.Learn != nil {
			for k := range r.Learn.Arms {
				unloaded(r.Learn.Arms[k], d.at[&r.Learn.Arms[k]], fmt.Sprintf("%s.learn.arms[%d]", name, k))
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
