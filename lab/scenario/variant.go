package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// variants are the sections that are merged over a file and its cases, in this
// order.
var variants = []struct {
	key   string
	asked func(Options) bool
}{
	{"emulated", func(o Options) bool { return o.Emulated }},
	{"quick", func(o Options) bool { return o.Quick }},
}

// header are the required keys, and what to write there.
var header = []struct{ key, write string }{
	{"name", "one word"},
	{"title", "a few words"},
	{"source", "where the experiment comes from"},
	{"expect", "what result is expected, and why"},
}

// Keys that cases do not inherit, and keys that sections cannot change.
var (
	ofFile = []string{"name", "title", "source", "expect", "needs", "cases", "emulated", "quick"}
	ofCase = []string{"name", "emulated", "quick"}
)

// scenario reads one variant of a file.
func (r *reader) scenario(root *node, o Options) *Scenario {
	var s Scenario
	r.head(root, &s)
	common := without(root, ofFile...)
	var changes, kept []*node
	for _, section := range r.sections(root, o) {
		if only := section.Get("only"); only != nil {
			kept = append(kept, only)
		}
		changes = append(changes, without(section, "only"))
	}
	cases := root.Get("cases")
	if cases == nil {
		own := &node{Place: root.Place, Kind: yamlfile.Mapping}
		s.Cases = []Case{r.readCase(inherit(own, common, changes))}
	} else {
		for _, own := range r.Values(cases) {
			if !r.Want(own, yamlfile.Mapping) {
				continue
			}
			own = inherit(without(own, ofCase[1:]...), common, append(slices.Clone(changes), r.sections(own, o)...))
			c := r.readCase(own)
			switch {
			case own.Get("name") == nil:
				r.Fail(own.Place, "a case without a name", "write name: and a few words")
			case c.Name != "" && slices.ContainsFunc(s.Cases, func(o Case) bool { return o.Name == c.Name }):
				r.Fail(own.Get("name").Place, fmt.Sprintf("a second case %q", c.Name), "give it another name")
			}
			s.Cases = append(s.Cases, c)
		}
	}
	r.keep(&s, kept)
	if o.Emulated && emulates(root) {
		s.Title += ", scaled for an emulated processor"
	}
	return &s
}

// emulates reports whether a file or one of its cases has an emulated section.
func emulates(root *node) bool {
	cases := root.Get("cases")
	return root.Get("emulated") != nil ||
		cases != nil && slices.ContainsFunc(cases.Items, func(c *node) bool { return c.Get("emulated") != nil })
}

// head reads the keys that are common to all cases.
func (r *reader) head(root *node, s *Scenario) {
	r.fields(pick(root, ofFile...),
		field{"name", r.text(&s.Name)}, field{"title", r.text(&s.Title)},
		field{"source", r.text(&s.Source)}, field{"expect", r.text(&s.Expect)},
		field{"needs", r.needs(&s.Needs)},
		field{"cases", func(n *node) { r.Want(n, yamlfile.List) }},
		field{"emulated", func(n *node) { r.Want(n, yamlfile.Mapping) }}, field{"quick", func(n *node) { r.Want(n, yamlfile.Mapping) }})
	for _, h := range header {
		if root.Get(h.key) == nil {
			r.Fail(root.Place, "no "+h.key, "write "+h.key+": and "+h.write)
		}
	}
}

// sections returns the sections of a file or a case that the options choose.
func (r *reader) sections(n *node, o Options) (list []*node) {
	for _, v := range variants {
		section := n.Get(v.key)
		if section == nil || !v.asked(o) || !r.Want(section, yamlfile.Mapping) {
			continue
		}
		for _, key := range append(slices.Clone(ofFile), ofCase...) {
			if in := section.Get(key); in != nil {
				r.Fail(in.Place, "a variant does not change "+key, "to leave cases out, list those to keep in only")
			}
		}
		list = append(list, section)
	}
	return list
}

// inherit merges a case over what all cases have, and sections over both. The result
// has the case's place in the file.
func inherit(own, common *node, sections []*node) *node {
	merged := *merge(common, own)
	for _, s := range sections {
		merged = *merge(&merged, s)
	}
	merged.Place = own.Place
	return &merged
}

// keep removes the cases that the key only of a variant does not name.
func (r *reader) keep(s *Scenario, lists []*node) {
	var names []string
	for _, c := range s.Cases {
		names = append(names, c.Name)
	}
	for _, only := range lists {
		var kept []string
		for _, item := range r.Values(only) {
			if r.Want(item, yamlfile.Text) && !slices.Contains(names, item.Text) {
				r.Unknown(item.Place, "case", item.Text, names, "")
			}
			kept = append(kept, item.Text)
		}
		s.Cases = slices.DeleteFunc(s.Cases, func(c Case) bool { return !slices.Contains(kept, c.Name) })
	}
	if len(lists) > 1 && len(s.Cases) == 0 && len(names) > 0 {
		r.Fail(lists[1].Place, "quick and emulated together select no case", "name a case that the other names too")
	}
}

// needs reads what the machine must have.
func (r *reader) needs(to *[]string) func(*node) {
	return func(n *node) {
		*to = nil
		for _, item := range r.Values(n) {
			what, which, _ := strings.Cut(item.Text, ":")
			switch {
			case !r.Want(item, yamlfile.Text):
			case item.Text == "netem", item.Text == "fq", (what == "cc" || what == "program") && which != "":
				*to = append(*to, item.Text)
			default:
				r.Fail(item.Place, fmt.Sprintf("unknown need %q", item.Text),
					"write netem, fq, a congestion control as cc:dctcp, or a program as program:iperf3")
			}
		}
	}
}
