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

// Read returns the tree of the file's only document; nil if there is none, or if the file is
// not YAML.
func (d *Decoder) Read(data []byte, maxBytes int) (root *Node) {
	if len(data) > maxBytes {
		d.Fail(start, fmt.Sprintf("the file is larger than %d bytes", maxBytes), "make it shorter")
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if at, ok := notText(data); ok {
		d.Fail(at, "a byte that is not text in UTF-8", "remove it")
		return nil
	}
	defer func() {
		// The parser is a library. If it panics because of a file, a running daemon must
		// continue with its old rules.
		if r := recover(); r != nil {
			root = nil
			d.Fail(start, fmt.Sprintf("the file cannot be parsed as YAML: %v", r), "simplify it")
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if at, ok := tooDeep(tokens); ok {
		d.Fail(at, fmt.Sprintf("more than %d levels, one inside the other", maxDepth), "close the brackets")
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.syntax(err, data)
		return nil
	}
	var document ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.CommentType:
		case document != nil:
			d.Fail(begin(doc.Body), "a second document", "keep one document: remove the --- above this line")
			return nil
		default:
			document = doc.Body
		}
	}
	if document == nil {
		return nil
	}
	return d.tree(document, "")
}

func (d *Decoder) syntax(err error, data []byte) {
	var ye yaml.Error
	if !errors.As(err, &ye) {
		d.Fail(start, "not YAML: "+err.Error(), "correct it")
		return
	}
	at := tokenBegin(ye.GetToken())
	fix := "correct the YAML here"
	lines := bytes.Split(data, []byte("\n"))
	if n := at.Line - 1; n >= 0 && n < len(lines) && bytes.Contains(lines[n], []byte("::")) && bytes.ContainsAny(lines[n], "[{") {
		fix = `between [ ] or { }, put IPv6 addresses in quotes: ["::1/128"]`
	}
	d.Fail(at, "not YAML: "+ye.GetMessage(), fix)
}

// notText finds the first byte that is not UTF-8 or is a control character.
func notText(data []byte) (Place, bool) {
	p := start
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && n == 1, r < ' ' && r != '\n' && r != '\t' && r != '\r', r == 0x7f:
			return p, true
		case r == '\n':
			p = Place{Line: p.Line + 1, Col: 1}
		default:
			p.Col++
		}
		data = data[n:]
	}
	return Place{}, false
}

// maxDepth bounds the levels that begin within a line; our formats have five. The
// parser's time grows with their square, and its stack with them.
const maxDepth = 32

// tooDeep finds the bracket or dash that opens one level too many.
func tooDeep(tokens token.Tokens) (Place, bool) {
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
	return Place{}, false
}
