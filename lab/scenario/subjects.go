package scenario

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
	"github.com/tcpilot/tcpilot/lab/subject"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// subjects reads what is compared: bare names, or mappings with a name.
func (r *reader) subjects(n *node) (specs []subject.Spec) {
	for _, item := range r.Values(n) {
		var s subject.Spec
		switch item.Kind {
		case yamlfile.Text:
			s = r.named(item)
		default:
			s = r.subject(item)
		}
		if slices.ContainsFunc(specs, func(o subject.Spec) bool { return o.Name == s.Name && s.Name != "" }) {
			r.Fail(item.Place, fmt.Sprintf("a second subject %q", s.Name), "give it another name")
		}
		specs = append(specs, s)
	}
	return specs
}

// named is a subject without settings.
func (r *reader) named(n *node) subject.Spec {
	s, ok := subject.Named(n.Text)
	if !ok {
		r.Unknown(n.Place, "subject", n.Text, subject.Names(), fmt.Sprintf("there are default, tcpilot, %s, %s, bpftune and congestion controls; for one of your own write {name: %s, cc: %[3]s}",
			subject.KernelOnly, subject.Adapting, n.Text))
		s.Name = n.Text
	}
	return s
}

// SubjectNames lists the subjects that need no settings.
func SubjectNames() []string { return subject.Names() }

// subject reads a subject with settings; its keys determine its kind.
func (r *reader) subject(n *node) subject.Spec {
	var s subject.Spec
	var kinds []subject.Kind
	is := func(k subject.Kind, read func(*node)) func(*node) {
		return func(n *node) {
			if !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
			read(n)
		}
	}
	before := r.Failed
	r.fields(n,
		field{"name", r.text(&s.Name)},
		field{"cc", r.text(&s.CC)},
		field{"route", is(subject.Route, func(n *node) {
			r.fields(n, field{"initcwnd", r.count(&s.InitCwnd, 1, 65535)}, field{"initrwnd", r.count(&s.InitRwnd, 1, 65535)})
		})},
		field{"tcpilot", is(subject.Tcpilot, func(n *node) { s.Config = r.configuration(n) })},
		field{"bpftune", is(subject.Bpftune, func(n *node) { r.fields(n) })},
		field{"begin", is(subject.Command, r.text(&s.Begin))},
		field{"end", is(subject.Command, r.text(&s.End))},
		field{"pods", is(subject.Pods, oneOf(r, "way to connect pods", &s.Join, topology.Joins...))},
		field{"cni", is(subject.Pods, func(n *node) { s.Plugins = r.plugins(n) })},
		field{"annotations", is(subject.Pods, func(n *node) { s.Annotations = r.annotations(n) })},
	)
	if slices.Contains(kinds, subject.Pods) { // tcpilot is then on the nodes
		kinds = slices.DeleteFunc(kinds, func(k subject.Kind) bool { return k == subject.Tcpilot })
	}
	switch {
	case len(kinds) == 1:
		s.Kind = kinds[0]
	case len(kinds) == 0 && s.CC != "":
		s.Kind = subject.Fixed
	case r.Failed == before:
		r.Fail(n.Place, "want exactly one of cc, route, tcpilot, bpftune, begin, pods and cni", "see tcpilot lab show incast-clamp")
	}
	if r.Failed == before {
		if err := s.Check(); err != nil {
			r.Fail(n.Place, err.Error(), "")
		}
	}
	return s
}

// plugins reads a chain of CNI plugins: for each its type, and keys of its configuration.
func (r *reader) plugins(n *node) (list []subject.Plugin) {
	for _, item := range r.Values(n) {
		if !r.Want(item, yamlfile.Mapping) {
			continue
		}
		p := subject.Plugin{Keys: map[string]json.RawMessage{}}
		for _, e := range item.Entries {
			if e.Key == "type" {
				r.text(&p.Type)(e.Value)
				continue
			}
			p.Keys[e.Key] = json.RawMessage(toJSON(e.Value))
		}
		if p.Type == "" {
			r.Fail(item.Place, "a plugin without a type", "write {type: ptp}")
		}
		list = append(list, p)
	}
	return list
}

// annotations reads the annotations of pods.
func (r *reader) annotations(n *node) map[string]string {
	all := map[string]string{}
	if !r.Want(n, yamlfile.Mapping) {
		return all
	}
	for _, e := range n.Entries {
		if r.Want(e.Value, yamlfile.Text) {
			all[e.Key] = e.Value.Text
		}
	}
	return all
}

// toJSON writes a value as JSON. A plain scalar that JSON knows, a number, true, false or null, is that;
// all other text is a string.
func toJSON(n *node) string {
	var parts []string
	switch {
	case n.Kind == yamlfile.Mapping:
		for _, e := range n.Entries {
			parts = append(parts, quoteJSON(e.Key)+":"+toJSON(e.Value))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case n.Kind == yamlfile.List:
		for _, item := range n.Items {
			parts = append(parts, toJSON(item))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case n.Kind == yamlfile.Null:
		return "null"
	case n.Style == yamlfile.Plain && json.Valid([]byte(n.Text)):
		return n.Text
	}
	return quoteJSON(n.Text)
}

func quoteJSON(text string) string {
	b, _ := json.Marshal(text) // a string has no error
	return string(b)
}

// configuration reads a part of tcpilot's configuration and returns its text. tcpilot's
// own reader checks it, and its errors are reported at their place in this file.
func (r *reader) configuration(n *node) string {
	if !r.Want(n, yamlfile.Mapping) {
		return ""
	}
	for _, key := range subject.OwnKeys {
		if v := n.Get(key); v != nil {
			r.Fail(v.Place, "the lab sets "+key+" itself", "remove it")
		}
	}
	config.Check(&r.Decoder, n)
	var b strings.Builder
	writeMapping(&b, n, 0)
	return b.String()
}

// writeMapping writes a mapping as YAML, each key and each value of a list on a line of its own.
func writeMapping(b *strings.Builder, n *node, depth int) {
	for _, e := range n.Entries {
		writeValue(b, strconv.Quote(e.Key)+":", e.Value, depth)
	}
}

// writeValue writes a value after its key or dash.
func writeValue(b *strings.Builder, lead string, v *node, depth int) {
	var text string
	switch {
	case len(v.Entries) > 0 || len(v.Items) > 0:
	case v.Kind == yamlfile.Mapping:
		text = " {}"
	case v.Kind == yamlfile.List:
		text = " []"
	case v.Style == yamlfile.Plain:
		text = " " + v.Text
	default:
		text = " " + strconv.Quote(v.Text)
	}
	b.WriteString(strings.Repeat("  ", depth) + lead + text + "\n")
	writeMapping(b, v, depth+1)
	for _, item := range v.Items {
		writeValue(b, "-", item, depth+1)
	}
}
