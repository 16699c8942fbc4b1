package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// decoder fills structs from the syntax tree of one file and collects all mistakes; it never
// stops at the first one.
type decoder struct {
	file string
	errs Errors
	// at has the position of each decoded value, by pointer to its destination.
	at map[any]yamlfile.Position
	// broken has the structs, by pointer, that contain a mistake.
	broken map[any]bool
}

func (d *decoder) fail(p yamlfile.Position, key, problem, whatToDo string) {
	p = p.Or(yamlfile.Position{Line: 1, Col: 1})
	d.errs = append(d.errs, &Error{File: d.file, Line: p.Line, Col: p.Col, Key: key, Problem: problem, WhatToDo: whatToDo})
}

// parse returns the root of the file's only document; nil if the document is
// empty, or not YAML, which is then in d.errs.
func (d *decoder) parse(data []byte) (root ast.Node) {
	d.broken = make(map[any]bool)
	root, err := yamlfile.Parse(data, MaxFile)
	if m := (*yamlfile.Mistake)(nil); errors.As(err, &m) {
		d.fail(m.At, "", m.Problem, m.WhatToDo)
	}
	return root
}

// root decodes the whole file: the top level's keys into c, but rules into raw.
func (d *decoder) root(n ast.Node, c *Config, raw *fileRules) {
	cv, rv := reflect.ValueOf(c).Elem(), reflect.ValueOf(raw).Elem()
	targets := targetsOf(cv)
	for key, t := range targetsOf(rv) {
		targets[key] = t
	}
	d.mapping(n, "", targets, nil)
}

// target is the destination of a key's value.
type target struct {
	value reflect.Value
	tag   reflect.StructTag
}

// targetsOf lists the fields of a struct by key.
func targetsOf(v reflect.Value) map[string]target {
	m := make(map[string]target)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if key := f.Tag.Get("key"); key != "" {
			m[key] = target{v.Field(i), f.Tag}
		}
	}
	return m
}

// mapping decodes the entries of a mapping. For a key that is unknown here, misplaced says
// where it belongs, if anywhere.
func (d *decoder) mapping(n ast.Node, name string, targets map[string]target, misplaced func(key string) string) {
	entries, ok := d.entries(n, name)
	if !ok {
		return
	}
	first := make(map[string]yamlfile.Position)
	for _, e := range entries {
		key, at, ok := d.key(e, name)
		if !ok {
			continue
		}
		full := yamlfile.Join(name, key)
		if p, dup := first[key]; dup {
			d.fail(at, full, fmt.Sprintf("the key is already in line %d", p.Line), "remove one of them")
			continue
		}
		first[key] = at
		t, known := targets[key]
		if !known {
			d.unknown(at, name, key, targets, misplaced)
			continue
		}
		if yamlfile.IsNull(e.Value) {
			d.fail(at, full, "the key has no value", "write one, or remove the key to have the default")
			continue
		}
		d.into(e.Value, full, t)
	}
}

func (d *decoder) entries(n ast.Node, name string) ([]*ast.MappingValueNode, bool) {
	entries, ok := yamlfile.Entries(n)
	if !ok && !d.unsupported(n, name) {
		d.fail(yamlfile.Begin(n), name, "want key: value entries, found "+kindOf(n), "see docs/config.md for the keys")
	}
	return entries, ok
}

// key returns the text of an entry's key.
func (d *decoder) key(e *ast.MappingValueNode, name string) (string, yamlfile.Position, bool) {
	at := yamlfile.Begin(e.Key)
	key, ok := yamlfile.Key(e.Key)
	switch {
	case ok:
	case e.Key.IsMergeKey():
		d.fail(at, name, "merge keys (<<) are not supported", "write the entries out")
	default:
		d.fail(at, name, "the key is not a plain word", "see docs/config.md for the keys")
	}
	return key, at, ok
}

func (d *decoder) unknown(at yamlfile.Position, name, key string, targets map[string]target, misplaced func(string) string) {
	keys := slices.Sorted(maps.Keys(targets))
	fix := "see docs/config.md for the keys that exist here"
	if near := Nearest(key, keys); near != "" {
		fix = fmt.Sprintf("did you mean %q?", near)
	} else if misplaced != nil {
		if where := misplaced(key); where != "" {
			fix = where
		}
	}
	d.fail(at, name, fmt.Sprintf("unknown key %q", key), fix)
}

// unsupported reports YAML that this file format does not support.
func (d *decoder) unsupported(n ast.Node, name string) bool {
	what := yamlfile.Unsupported(n)
	if _, block := n.(*ast.LiteralNode); block {
		what = "text blocks (| and >)"
	}
	if what == "" {
		return false
	}
	d.fail(yamlfile.Begin(n), name, what+" are not supported", "write the value out")
	return true
}

// scalar returns the text of a single value.
func (d *decoder) scalar(n ast.Node, name string) (string, bool) {
	text, ok := yamlfile.Scalar(n)
	switch {
	case ok:
	case yamlfile.IsNull(n):
		d.fail(yamlfile.Begin(n), name, "a value is missing", "write one")
	case !d.unsupported(n, name):
		d.fail(yamlfile.Begin(n), name, "want a single value, found "+kindOf(n), "write one value")
	}
	return text, ok
}

// list returns the elements of a sequence; a single value is a list of one.
func (d *decoder) list(n ast.Node) []ast.Node {
	if items, ok := yamlfile.Items(n); ok {
		return items
	}
	return []ast.Node{n}
}

func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "key: value entries"
	case *ast.SequenceNode:
		return "a list"
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return "a single value"
	}
	return "something else"
}
