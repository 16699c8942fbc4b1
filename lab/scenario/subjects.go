package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
	"github.com/tcpilot/tcpilot/lab/subject"
)

// subjects reads what is compared: bare names, or mappings with a name.
func (r *reader) subjects(n *node) (specs []subject.Spec) {
	r.each(n, func(item *node) {
		var s subject.Spec
		switch item.kind {
		case text:
			s = r.named(item)
		default:
			s = r.subject(item)
		}
		if slices.ContainsFunc(specs, func(o subject.Spec) bool { return o.Name == s.Name && s.Name != "" }) {
			r.fail(item, fmt.Sprintf("a second subject %q", s.Name), "give it another name")
		}
		specs = append(specs, s)
	})
	return specs
}

// named is a subject without settings.
func (r *reader) named(n *node) subject.Spec {
	s, ok := subject.Named(n.text)
	if !ok {
		fix := fmt.Sprintf("there are default, tcpilot, %s, bpftune and congestion controls; for one of your own write {name: %s, cc: %[2]s}",
			subject.KernelOnly, n.text)
		if near := config.Nearest(n.text, subject.Names()); near != "" {
			fix = fmt.Sprintf("did you mean %q?", near)
		}
		r.fail(n, fmt.Sprintf("unknown subject %q", n.text), fix)
		s.Name = n.text
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
	before := r.failed
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
	)
	switch {
	case len(kinds) == 1:
		s.Kind = kinds[0]
	case len(kinds) == 0 && s.CC != "":
		s.Kind = subject.Fixed
	case r.failed == before:
		r.fail(n, "want exactly one of cc, route, tcpilot, bpftune and begin", "see tcpilot lab show incast-clamp")
	}
	if r.failed == before {
		if err := s.Check(); err != nil {
			r.fail(n, err.Error(), "")
		}
	}
	return s
}

// configuration reads a part of tcpilot's configuration and returns its text. tcpilot's
// own reader checks it, and its errors are reported at their place in this file.
func (r *reader) configuration(n *node) string {
	if !r.want(n, mapping) {
		return ""
	}
	for _, key := range subject.OwnKeys {
		if v := n.get(key); v != nil {
			r.fail(v, "the lab sets "+key+" itself", "remove it")
		}
	}
	var w yamlWriter
	w.mapping(n, 0)
	var found config.Errors
	if _, err := config.Parse(r.file, []byte(w.String())); errors.As(err, &found) {
		for _, e := range found {
			at := *w.at(e.Line, e.Col, n)
			if e.Key != "" {
				at.path = n.path + "." + e.Key
			}
			r.fail(&at, e.Problem, e.WhatToDo)
		}
	} else if err != nil {
		r.fail(n, err.Error(), "")
	}
	return w.String()
}

// yamlWriter writes a tree as YAML, each key and each value of a list on a line
// of its own, and records which nodes are on which line.
type yamlWriter struct {
	strings.Builder
	lines []written
}

type written struct {
	lead, value *node
	col         int // where the value begins
}

// at returns the node at a place of the text, or otherwise if there is none.
func (w *yamlWriter) at(line, col int, otherwise *node) *node {
	if line > len(w.lines) {
		return otherwise
	}
	l := w.lines[line-1]
	if col < l.col {
		return l.lead
	}
	return l.value
}

func (w *yamlWriter) line(depth int, lead, value *node, parts ...string) {
	indent := strings.Repeat("  ", depth)
	w.lines = append(w.lines, written{lead, value, len(indent) + len(parts[0]) + 2})
	w.WriteString(indent + strings.Join(parts, " ") + "\n")
}

func (w *yamlWriter) mapping(n *node, depth int) {
	for _, e := range n.entries {
		key := &node{line: e.line, col: e.col, path: yamlfile.Join(n.path, e.key)}
		w.value(key, strconv.Quote(e.key)+":", e.value, depth)
	}
}

// value writes a value after its key or dash.
func (w *yamlWriter) value(at *node, lead string, v *node, depth int) {
	switch {
	case v.kind == mapping && len(v.entries) > 0:
		w.line(depth, at, at, lead)
		w.mapping(v, depth+1)
	case v.kind == list && len(v.items) > 0:
		w.line(depth, at, at, lead)
		for _, item := range v.items {
			w.value(item, "-", item, depth+1)
		}
	case v.kind == mapping:
		w.line(depth, at, v, lead, "{}")
	case v.kind == list:
		w.line(depth, at, v, lead, "[]")
	case v.kind == null:
		w.line(depth, at, v, lead, "null")
	case v.plain:
		w.line(depth, at, v, lead, v.text)
	default:
		w.line(depth, at, v, lead, strconv.Quote(v.text))
	}
}
