package yamlfile

import (
	"reflect"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Position is a line and a column, from 1; the zero Position means none.
type Position struct{ Line, Col int }

var start = Position{1, 1}

// Or returns p, or q if p is none.
func (p Position) Or(q Position) Position {
	if p == (Position{}) {
		return q
	}
	return p
}

// Begin is the position of a node: for a block mapping, that of its first key.
func Begin(n ast.Node) Position {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return Begin(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return Begin(n.Key)
	}
	if n == nil || reflect.ValueOf(n).IsNil() {
		return start
	}
	return tokenBegin(n.GetToken())
}

func tokenBegin(t *token.Token) Position {
	if t == nil || t.Position == nil || t.Position.Line < 1 {
		return start
	}
	return Position{t.Position.Line, max(1, t.Position.Column)}
}

// Entries are the keys and values of a mapping.
func Entries(n ast.Node) (entries []*ast.MappingValueNode, ok bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// Get returns the value of a key of a mapping.
func Get(n ast.Node, key string) (value ast.Node, ok bool) {
	entries, _ := Entries(n)
	for _, e := range entries {
		if k, isText := Key(e.Key); isText && k == key {
			return e.Value, true
		}
	}
	return nil, false
}

// Items are the elements of a list.
func Items(n ast.Node) (items []ast.Node, ok bool) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, false
	}
	return list.Values, true
}

// Key returns the text of a key. A merge key (<<), a list and a mapping are not ok.
func Key(k ast.MapKeyNode) (text string, ok bool) {
	if k.IsMergeKey() {
		return "<<", false
	}
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

// Scalar returns the text of a single value.
func Scalar(n ast.Node) (text string, ok bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// IsNull reports whether a key has no value.
func IsNull(n ast.Node) bool {
	_, null := n.(*ast.NullNode)
	return n == nil || null
}

// Unsupported names a feature of YAML that our formats do not support ("anchors (&name)");
// empty if n uses none.
func Unsupported(n ast.Node) string {
	switch n.(type) {
	case *ast.AnchorNode:
		return "anchors (&name)"
	case *ast.AliasNode:
		return "aliases (*name)"
	case *ast.TagNode:
		return "tags (!name)"
	}
	return ""
}

// Join adds a key to the name of its mapping: rules[0].match.
func Join(name, key string) string {
	if name == "" {
		return key
	}
	return name + "." + key
}
