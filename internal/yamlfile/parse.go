package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Mistake is an error in a file, with its position and what to do about it.
type Mistake struct {
	At                Position
	Problem, WhatToDo string
}

func (m *Mistake) Error() string { return m.Problem + "; " + m.WhatToDo }

// Parse returns the root of a file's only document; nil if there is none. A duplicate key of
// a mapping is in the tree twice. The error is a Mistake.
func Parse(data []byte, maxBytes int) (root ast.Node, err error) {
	if len(data) > maxBytes {
		return nil, &Mistake{start, fmt.Sprintf("the file is larger than %d bytes", maxBytes), "make it shorter"}
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if at, ok := notText(data); ok {
		return nil, &Mistake{at, "a byte that is no text (UTF-8)", "remove it"}
	}
	defer func() {
		// The parser is a library. If it panics because of a file, that must not stop a
		// running daemon from going on with its old rules.
		if r := recover(); r != nil {
			root, err = nil, &Mistake{start, fmt.Sprintf("the file cannot be parsed as YAML: %v", r), "simplify it"}
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if at, ok := tooDeep(tokens); ok {
		return nil, &Mistake{at, fmt.Sprintf("more than %d levels, one inside the other", maxDepth), "close the brackets"}
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, syntax(err, data)
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if root != nil {
			return nil, &Mistake{Begin(doc.Body), "a second document", "keep one document: remove the --- above this line"}
		}
		root = doc.Body
	}
	return root, nil
}

func syntax(err error, data []byte) *Mistake {
	var ye yaml.Error
	if !errors.As(err, &ye) {
		return &Mistake{start, "not YAML: " + err.Error(), "correct it"}
	}
	at := tokenBegin(ye.GetToken())
	fix := "correct the YAML here"
	lines := bytes.Split(data, []byte("\n"))
	if n := at.Line - 1; n >= 0 && n < len(lines) && bytes.Contains(lines[n], []byte("::")) && bytes.ContainsAny(lines[n], "[{") {
		fix = `between [ ] or { }, put IPv6 addresses in quotes: ["::1/128"]`
	}
	return &Mistake{at, "not YAML: " + ye.GetMessage(), fix}
}

// notText finds the first byte that is not UTF-8 or is a control character.
func notText(data []byte) (Position, bool) {
	p := start
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && n == 1, r < ' ' && r != '\n' && r != '\t' && r != '\r', r == 0x7f:
			return p, true
		case r == '\n':
			p = Position{p.Line + 1, 1}
		default:
			p.Col++
		}
		data = data[n:]
	}
	return Position{}, false
}

// maxDepth bounds the levels that begin within a line; our formats have five. The
// parser's time grows with their square, and its stack with them.
const maxDepth = 32

// tooDeep finds the bracket or dash that opens one level too many.
func tooDeep(tokens token.Tokens) (Position, bool) {
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
			return tokenBegin(t), true
		}
	}
	return Position{}, false
}
