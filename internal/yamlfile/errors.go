package yamlfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one mistake in a file. Without File it is one in a value whose place the caller knows.
type Error struct {
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"` // from 1; 0: of the file as a whole
	Col      int    `json:"col,omitempty"`  // from 1, in characters
	Key      string `json:"key,omitempty"`  // such as rules[0].match.remote
	Problem  string `json:"problem"`
	WhatToDo string `json:"what_to_do,omitempty"`
}

// Error writes "file:line:col: key: problem; what to do", as far as these are known.
func (e *Error) Error() string {
	var b strings.Builder
	switch {
	case e.File != "" && e.Line != 0:
		fmt.Fprintf(&b, "%s:%d:%d: ", e.File, e.Line, e.Col)
	case e.File != "":
		b.WriteString(e.File + ": ")
	}
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString(e.Problem)
	if e.WhatToDo != "" {
		b.WriteString("; " + e.WhatToDo)
	}
	return b.String()
}

// Errors are all mistakes in a file, in order of position. It is never empty.
type Errors []*Error

// Error writes one mistake a line.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives errors.As the single mistakes.
func (es Errors) Unwrap() []error {
	list := make([]error, len(es))
	for i, e := range es {
		list[i] = e
	}
	return list
}

func (es Errors) sort() {
	slices.SortStableFunc(es, func(a, b *Error) int { return cmp.Or(a.Line-b.Line, a.Col-b.Col) })
}
