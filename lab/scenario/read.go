package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// maxFile bounds a scenario file, in bytes.
const maxFile = 64 << 10

// Read reads a scenario; errors refer to it by name. It returns the mistakes of all
// variants as config.Errors.
func Read(name string, data []byte, o Options) (*Scenario, error) {
	r := &reader{file: name, seen: make(map[config.Error]bool)}
	root := r.parse(data)
	if len(r.errs) > 0 {
		return nil, r.errors()
	}
	var asked *Scenario
	for _, v := range []Options{{}, {Quick: true}, {Emulated: true}, {Quick: true, Emulated: true}} {
		if s := r.scenario(root, v); v == o {
			asked = s
		}
	}
	if len(r.errs) > 0 {
		return nil, r.errors()
	}
	return asked, nil
}

// reader collects all mistakes of a file; it does not stop at the first one.
type reader struct {
	file   string
	errs   config.Errors
	seen   map[config.Error]bool // a mistake in a value that cases share is reported once
	failed int                   // number of calls of fail, repeated mistakes included
}

func (r *reader) fail(n *node, problem, whatToDo string) {
	r.failed++
	e := config.Error{File: r.file, Line: n.line, Col: n.col, Key: n.path, Problem: problem, WhatToDo: whatToDo}
	if !r.seen[e] {
		r.seen[e] = true
		r.errs = append(r.errs, &e)
	}
}

func (r *reader) errors() config.Errors {
	slices.SortStableFunc(r.errs, func(a, b *config.Error) int {
		return cmp.Or(a.Line-b.Line, a.Col-b.Col)
	})
	return r.errs
}

func (r *reader) parse(data []byte) (root *node) {
	const begin = "begin with name: and title:"
	doc, err := yamlfile.Parse(data, maxFile)
	if m := (*yamlfile.Mistake)(nil); errors.As(err, &m) {
		r.fail(&node{line: m.At.Line, col: m.At.Col}, m.Problem, m.WhatToDo)
		return nil
	}
	if doc == nil {
		r.fail(&node{line: 1, col: 1}, "the file is empty", begin)
		return nil
	}
	root = r.tree(doc, "")
	if root.kind != mapping {
		r.fail(root, "want key: value entries, found "+root.kind.String(), begin)
	}
	return root
}

// field is a key that a mapping may have, and the function that reads its value.
type field struct {
	key  string
	read func(*node)
}

// fields reads the entries of a mapping.
func (r *reader) fields(n *node, fields ...field) {
	if !r.want(n, mapping) {
		return
	}
	for _, e := range n.entries {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == e.key })
		if i < 0 {
			r.unknown(&node{line: e.line, col: e.col, path: e.in}, "key", e.key, keysOf(fields))
			continue
		}
		fields[i].read(e.value)
	}
}

func keysOf(fields []field) (keys []string) {
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	return keys
}

func (r *reader) want(n *node, k kind) bool {
	if n.kind == k {
		return true
	}
	fix := map[kind]string{
		text:    "write one value",
		list:    `begin each entry with "- ", or put them in [ ]`,
		mapping: "write key: value lines, or put them in { }",
	}
	r.fail(n, fmt.Sprintf("want %s, found %s", k, n.kind), fix[k])
	return false
}

// unknown reports a name that is not one of the known ones.
func (r *reader) unknown(at *node, what, name string, known []string) {
	fix := "there are " + strings.Join(known, ", ")
	if near := config.Nearest(name, known); near != "" {
		fix = fmt.Sprintf("did you mean %q?", near)
	}
	r.fail(at, fmt.Sprintf("unknown %s %q", what, name), fix)
}
