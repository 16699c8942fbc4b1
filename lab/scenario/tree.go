package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// node is a value of a file: a mapping, a list, or text. It has its place in the file,
// so that mistakes can be reported there after cases and variants are merged.
type node struct {
	kind      kind
	line, col int
	path      string // such as cases[1].links.bottleneck.forward.loss
	text      string
	plain     bool     // text without quotes
	entries   []*entry // of a mapping, in the file's order
	items     []*node  // of a list
}

type kind int

const (
	text kind = iota
	list
	mapping
	null
)

func (k kind) String() string {
	return [...]string{"a single value", "a list", "key: value entries", "nothing"}[k]
}

// entry is a key of a mapping and its value.
type entry struct {
	key       string
	line, col int
	in        string // path of the mapping that has the key
	value     *node
}

// get returns the value of a key, nil if there is none.
func (n *node) get(key string) *node {
	if n == nil {
		return nil
	}
	for _, e := range n.entries {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

// merge overlays a with b: mappings are merged by key, other values are replaced.
func merge(a, b *node) *node {
	if a == nil || b == nil || a.kind != mapping || b.kind != mapping {
		if b == nil {
			return a
		}
		return b
	}
	m := *a
	m.entries = make([]*entry, 0, len(a.entries)+len(b.entries))
	for _, e := range a.entries {
		if over := b.get(e.key); over != nil {
			e = &entry{e.key, e.line, e.col, e.in, merge(e.value, over)}
		}
		m.entries = append(m.entries, e)
	}
	for _, e := range b.entries {
		if a.get(e.key) == nil {
			m.entries = append(m.entries, e)
		}
	}
	return &m
}

// without returns the mapping without some keys.
func (n *node) without(keys ...string) *node {
	return n.filter(func(key string) bool { return !slices.Contains(keys, key) })
}

// with returns the mapping with only some keys.
func (n *node) with(keys ...string) *node {
	return n.filter(func(key string) bool { return slices.Contains(keys, key) })
}

func (n *node) filter(keep func(key string) bool) *node {
	m := *n
	m.entries = nil
	for _, e := range n.entries {
		if keep(e.key) {
			m.entries = append(m.entries, e)
		}
	}
	return &m
}

// tree turns the parser's syntax tree into nodes, and refuses YAML that scenario files
// do not use.
func (r *reader) tree(a ast.Node, path string) *node {
	n := &node{path: path}
	at := yamlfile.Begin(a)
	n.line, n.col = at.Line, at.Col
	if entries, ok := yamlfile.Entries(a); ok {
		r.mapping(n, entries)
		return n
	}
	if text, ok := yamlfile.Scalar(a); ok {
		quoted := a.Type() == ast.StringType && a.GetToken().Type != token.StringType
		n.text, n.plain = text, !quoted
		return n
	}
	if what := yamlfile.Unsupported(a); what != "" {
		r.fail(n, what+" are not supported", "write the value out")
		return n
	}
	if items, ok := yamlfile.Items(a); ok {
		n.kind = list
		for i, v := range items {
			n.items = append(n.items, r.tree(v, fmt.Sprintf("%s[%d]", path, i)))
		}
		return n
	}
	switch a := a.(type) {
	case *ast.LiteralNode:
		n.text = strings.TrimRight(a.Value.Value, "\n")
	case nil, *ast.NullNode:
		n.kind = null
	default:
		r.fail(n, "not a value", "write a value, a list, or key: value entries")
	}
	return n
}

func (r *reader) mapping(n *node, values []*ast.MappingValueNode) {
	n.kind = mapping
	for _, v := range values {
		p := yamlfile.Begin(v.Key)
		key, ok := yamlfile.Key(v.Key)
		at := &node{line: p.Line, col: p.Col, path: yamlfile.Join(n.path, key)}
		switch before := n.entry(key); {
		case !ok:
			r.fail(at, "the key is not a plain word", "write a word")
		case before != nil:
			r.fail(at, fmt.Sprintf("the key is already set in line %d", before.line), "remove one of them")
		default:
			value := r.tree(v.Value, at.path)
			if value.kind == null {
				r.fail(at, "the key has no value", "write one, or remove the key for the default")
				continue
			}
			n.entries = append(n.entries, &entry{key, p.Line, p.Col, n.path, value})
		}
	}
}

func (n *node) entry(key string) *entry {
	for _, e := range n.entries {
		if e.key == key {
			return e
		}
	}
	return nil
}
