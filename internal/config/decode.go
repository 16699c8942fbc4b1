package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// decoder fills structs from the syntax tree of one file and collects what is
// wrong on the way; it never stops at the first mistake.
type decoder struct {
	file string
	errs Errors
	// at has the position of each decoded value, by pointer to where it went.
	at map[any]position
	// broken has the structs, by pointer, in which something was wrong.
	broken map[any]bool
}

func (d *decoder) fail(p position, key, problem, whatToDo string) {
	p = p.or(position{1, 1})
	d.errs = append(d.errs, &Error{File: d.file, Line: p.line, Col: p.col, Key: key, Problem: problem, WhatToDo: whatToDo})
}

// parse returns the root of the file's only document; nil if the document is
// empty, or not YAML, which is then in d.errs.
func (d *decoder) parse(data []byte) (root ast.Node) {
	d.broken = make(map[any]bool)
	if len(data) > MaxFile {
		d.fail(position{}, "", fmt.Sprintf("the file is larger than %d bytes", MaxFile), "make it shorter")
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if at, ok := notText(data); ok {
		d.fail(at, "", "a byte that is no text (UTF-8)", "remove it")
		return nil
	}
	defer func() {
		// The parser is not ours; a file that it stumbles over must not stop a
		// running daemon from going on with its old rules.
		if r := recover(); r != nil {
			d.fail(position{}, "", fmt.Sprintf("the file cannot be parsed as YAML: %v", r), "simplify it")
			root = nil
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if at, ok := tooDeep(tokens); ok {
		d.fail(at, "", fmt.Sprintf("more than %d levels, one inside the other", maxDepth), "close the brackets")
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.syntax(err, data)
		return nil
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if root != nil {
			d.fail(posOf(doc.Body), "", "a second document", "keep one document: remove the --- above this line")
			return nil
		}
		root = doc.Body
	}
	return root
}

func (d *decoder) syntax(err error, data []byte) {
	var ye yaml.Error
	if !errors.As(err, &ye) {
		d.fail(position{}, "", "not YAML: "+err.Error(), "correct it")
		return
	}
	p := tokenPos(ye.GetToken())
	fix := "correct the YAML here"
	lines := bytes.Split(data, []byte("\n"))
	if n := p.line - 1; n >= 0 && n < len(lines) && bytes.Contains(lines[n], []byte("::")) && bytes.ContainsAny(lines[n], "[{") {
		fix = `between [ ] or { }, put IPv6 addresses in quotes: ["::1/128"]`
	}
	d.fail(p, "", "not YAML: "+ye.GetMessage(), fix)
}

// notText finds the first byte that is not UTF-8 or is a control character.
func notText(data []byte) (position, bool) {
	p := position{1, 1}
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && n == 1, r < ' ' && r != '\n' && r != '\t' && r != '\r', r == 0x7f:
			return p, true
		case r == '\n':
			p = position{p.line + 1, 1}
		default:
			p.col++
		}
		data = data[n:]
	}
	return position{}, false
}

// maxDepth bounds the levels that begin within a line; the format has four. The
// parser's time grows with their square, and its stack with them.
const maxDepth = 32

// tooDeep finds the bracket or dash that opens one level too many.
func tooDeep(tokens token.Tokens) (position, bool) {
	brackets, dashes := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets++
		case token.SequenceEndType, token.MappingEndType:
			brackets = max(0, brackets-1)
		}
		if t.Type == token.SequenceEntryType {
			dashes++
		} else {
			dashes = 0
		}
		if max(brackets, dashes) > maxDepth {
			return tokenPos(t), true
		}
	}
	return position{}, false
}

func tokenPos(t *token.Token) position {
	if t == nil || t.Position == nil || t.Position.Line < 1 {
		return position{1, 1}
	}
	return position{t.Position.Line, max(1, t.Position.Column)}
}

// posOf is where a node begins: for a block mapping that is its first key.
func posOf(n ast.Node) position {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return posOf(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return posOf(n.Key)
	}
	if n == nil || reflect.ValueOf(n).IsNil() {
		return position{1, 1}
	}
	return tokenPos(n.GetToken())
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

// target is where the value of a key goes.
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

// mapping decodes the entries of a mapping. misplaced can say where a key that is
// unknown here belongs.
func (d *decoder) mapping(n ast.Node, name string, targets map[string]target, misplaced func(key string) string) {
	entries, ok := d.entries(n, name)
	if !ok {
		return
	}
	first := make(map[string]position)
	for _, e := range entries {
		key, at, ok := d.key(e, name)
		if !ok {
			continue
		}
		full := join(name, key)
		if p, dup := first[key]; dup {
			d.fail(at, full, fmt.Sprintf("the key stands in line %d already", p.line), "remove one of them")
			continue
		}
		first[key] = at
		t, known := targets[key]
		if !known {
			d.unknown(at, name, key, targets, misplaced)
			continue
		}
		if isNull(e.Value) {
			d.fail(at, full, "the key has no value", "write one, or remove the key to have the default")
			continue
		}
		d.into(e.Value, full, t)
	}
}

func (d *decoder) entries(n ast.Node, name string) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	if !d.unsupported(n, name) {
		d.fail(posOf(n), name, "want key: value entries, found "+kindOf(n), "see docs/config.md for the keys")
	}
	return nil, false
}

// key returns the text of an entry's key.
func (d *decoder) key(e *ast.MappingValueNode, name string) (string, position, bool) {
	at := posOf(e.Key)
	if e.Key.IsMergeKey() {
		d.fail(at, name, "merge keys (<<) are not supported", "write the entries out")
		return "", at, false
	}
	switch k := e.Key.(type) {
	case *ast.StringNode:
		return k.Value, at, true
	case ast.ScalarNode:
		if t := k.GetToken(); t != nil {
			return t.Value, at, true
		}
	}
	d.fail(at, name, "a key that is no plain word", "see docs/config.md for the keys")
	return "", at, false
}

func (d *decoder) unknown(at position, name, key string, targets map[string]target, misplaced func(string) string) {
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

// unsupported reports YAML that this file format does without.
func (d *decoder) unsupported(n ast.Node, name string) bool {
	var what string
	switch n.(type) {
	case *ast.AnchorNode:
		what = "anchors (&name) are"
	case *ast.AliasNode:
		what = "aliases (*name) are"
	case *ast.TagNode:
		what = "tags (!name) are"
	case *ast.LiteralNode:
		what = "text blocks (| and >) are"
	default:
		return false
	}
	d.fail(posOf(n), name, what+" not supported", "write the value out")
	return true
}

// scalar returns the text of a single value.
func (d *decoder) scalar(n ast.Node, name string) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	case nil, *ast.NullNode:
		d.fail(posOf(n), name, "a value is missing", "write one")
		return "", false
	}
	if !d.unsupported(n, name) {
		d.fail(posOf(n), name, "want a single value, found "+kindOf(n), "write one value")
	}
	return "", false
}

// list returns the elements of a sequence; a single value is a list of one.
func (d *decoder) list(n ast.Node) []ast.Node {
	if s, ok := n.(*ast.SequenceNode); ok {
		return s.Values
	}
	return []ast.Node{n}
}

func isNull(n ast.Node) bool {
	_, null := n.(*ast.NullNode)
	return n == nil || null
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

func join(name, key string) string {
	if name == "" {
		return key
	}
	return name + "." + key
}
