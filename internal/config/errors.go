package config

import (
	"fmt"
	"slices"
	"strings"
)

// Error is one mistake in a configuration file.
type Error struct {
	File     string `json:"file"`
	Line     int    `json:"line"`          // from 1
	Col      int    `json:"col"`           // from 1, in characters
	Key      string `json:"key,omitempty"` // such as rules[0].match.remote
	Problem  string `json:"problem"`
	WhatToDo string `json:"what_to_do"`
}

// Error writes "file:line:col: key: problem; what to do".
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: ", e.File, e.Line, e.Col)
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString(e.Problem)
	if e.WhatToDo != "" {
		b.WriteString("; " + e.WhatToDo)
	}
	return b.String()
}

// Errors are all mistakes in a configuration file, in order of position. It is
// never empty.
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

func (es Errors) sorted() Errors {
	slices.SortStableFunc(es, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Col - b.Col
	})
	return es
}
