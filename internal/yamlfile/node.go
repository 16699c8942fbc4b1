package yamlfile

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Node is a value of a file. It knows its place, so that mistakes can be reported there after
// parts of the file were merged or decoded.
type Node struct {
	Place
	Kind    Kind
	Text    string
	Style   Style    // of the text
	Entries []*Entry // of a mapping, in the file's order
	Items   []*Node  // of a list

	broken bool // a mistake in its form is reported already
}

// Place is where something is in a file: line and column from 1, and the keys and indices that
// lead to it, such as rules[0].match.
type Place struct {
	Line, Col int
	Path      string
}

// Entry is a key of a mapping and its value.
type Entry struct {
	Key   string
	At    Place // position of the key, and path of the mapping
	Value *Node
}

// Kind is the form of a node.
type Kind int

// Null is a key without a value; its node has the position of the key. Invalid is a value
// that our formats do not support, which is reported already.
const (
	Text Kind = iota
	List
	Mapping
	Null
	Invalid
)

func (k Kind) String() string {
	return [...]string{"a single value", "a list", "key: value entries", "nothing", "something else"}[k]
}

// Style is how a text is written. A Block begins with | or >.
type Style int

// Styles of text.
const (
	Plain Style = iota
	Quoted
	Block
)

// Get returns the value of a key, nil if there is none.
func (n *Node) Get(key string) *Node {
	if n != nil {
		for _, e := range n.Entries {
			if e.Key == key {
				return e.Value
			}
		}
	}
	return nil
}

// tree turns the parser's syntax tree into nodes.
func (d *Decoder) tree(a ast.Node, path string) *Node {
	n := &Node{Place: begin(a)}
	n.Path = path
	switch a := a.(type) {
	case *ast.MappingNode:
		d.entries(n, a.Values)
	case *ast.MappingValueNode:
		d.entries(n, []*ast.MappingValueNode{a})
	case *ast.SequenceNode:
		n.Kind = List
		for i, v := range a.Values {
			item := d.tree(v, fmt.Sprintf("%s[%d]", path, i))
			if item.Kind == Null {
				d.invalid(item, "a value is missing", "write one")
			}
			n.Items = append(n.Items, item)
		}
	case *ast.StringNode:
		n.Text = a.Value
		if a.GetToken().Type != token.StringType {
			n.Style = Quoted
		}
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		n.Text = a.GetToken().Value
	case *ast.LiteralNode:
		n.Text, n.Style = strings.TrimRight(a.Value.Value, "\n"), Block
	case nil, *ast.NullNode:
		n.Kind = Null
	case *ast.AnchorNode:
		d.invalid(n, "anchors (&name) are not supported", "write the value out")
	case *ast.AliasNode:
		d.invalid(n, "aliases (*name) are not supported", "write the value out")
	case *ast.TagNode:
		d.invalid(n, "tags (!name) are not supported", "write the value out")
	default:
		d.invalid(n, "not a value", "write a value, a list, or key: value entries")
	}
	return n
}

func (d *Decoder) invalid(n *Node, problem, whatToDo string) {
	d.Fail(n.Place, problem, whatToDo)
	n.Kind, n.broken = Invalid, true
}

// entries adds the entries of a mapping. Of a duplicate key the first one counts.
func (d *Decoder) entries(n *Node, values []*ast.MappingValueNode) {
	n.Kind = Mapping
	lines := make(map[string]int)
	for _, v := range values {
		at := begin(v.Key)
		at.Path = n.Path
		key, ok := keyText(v.Key)
		full := Join(n.Path, key)
		line, twice := lines[key]
		switch {
		case v.Key.IsMergeKey():
			d.Fail(at, "merge keys (<<) are not supported", "write the entries out")
		case !ok:
			d.Fail(at, "the key is not a plain word", "write a word")
		case twice:
			d.Fail(Place{at.Line, at.Col, full}, fmt.Sprintf("the key is already in line %d", line), "remove one of them")
		default:
			lines[key] = at.Line
			value := d.tree(v.Value, full)
			if value.Kind == Null {
				value.Line, value.Col = at.Line, at.Col
			}
			n.Entries = append(n.Entries, &Entry{key, at, value})
			continue
		}
		n.broken = true
	}
}

// keyText returns the text of a key. A list and a mapping are not ok.
func keyText(k ast.MapKeyNode) (text string, ok bool) {
	switch k := k.(type) {
	case *ast.StringNode:
		return k.Value, true
	case ast.ScalarNode:
		if t := k.GetToken(); t != nil {
			return t.Value, true
		}
	}
	return "", false
}

// Join adds a key to the path of its mapping: rules[0].match.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// begin is the position of a node: for a block mapping, that of its first key.
func begin(n ast.Node) Place {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return begin(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return begin(n.Key)
	}
	if n == nil || reflect.ValueOf(n).IsNil() {
		return start
	}
	return tokenBegin(n.GetToken())
}

func tokenBegin(t *token.Token) Place {
	if t == nil || t.Position == nil || t.Position.Line < 1 {
		return start
	}
	return Place{Line: t.Position.Line, Col: max(1, t.Position.Column)}
}

var start = Place{Line: 1, Col: 1}
