package yamlfile

import (
	"errors"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		text      string
		line, col int
		problem   string // empty: there is none
	}{
		"mapping":           {text: "a: 1\nb: {c: [2]}\n"},
		"byte order mark":   {text: "\ufeffa: 1\n"},
		"comments":          {text: "# only\n"},
		"empty":             {text: ""},
		"same key":          {"a: 1\nb: {c: 1, c: 2}\n", 2, 11, "b.c: the key is already in line 2"},
		"too long":          {strings.Repeat("#", 101), 1, 1, "larger than 100 bytes"},
		"not UTF-8":         {"a: 1\nb: \xff\n", 2, 4, "not text"},
		"control character": {"a: \x01\n", 1, 4, "not text"},
		"too deep":          {strings.Repeat("[", 40), 1, 33, "more than 32 levels"},
		"two documents":     {"a: 1\n---\nb: 2\n", 3, 1, "a second document"},
		"syntax":            {"a: [1\n", 1, 4, "not YAML"},
		"anchor":            {"a: {b: &x 1}\n", 1, 8, "a.b: anchors (&name) are not supported"},
		"alias":             {"a: *x\n", 1, 4, "a: aliases (*name) are not supported"},
		"tag":               {"a: !!str 1\n", 1, 4, "a: tags (!name) are not supported"},
		"merge key":         {"a: {<<: {b: 1}}\n", 1, 5, "a: merge keys (<<) are not supported"},
		"complex key":       {"? a\n: 1\n", 1, 1, "the key is not a plain word"},
		"empty element":     {"a: [1, ~]\n", 1, 8, "a[1]: a value is missing"},
	} {
		d := Decoder{File: "f"}
		root := d.Read([]byte(c.text), 100)
		err := d.Err()
		var all Errors
		switch {
		case c.problem == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.problem == "":
			if hasNone := strings.Trim(c.text, "# only\n") == ""; (root == nil) != hasNone {
				t.Errorf("%s: root is %v", name, root)
			}
		case !errors.As(err, &all) || len(all) != 1 || all[0].Line != c.line || all[0].Col != c.col ||
			!strings.Contains(err.Error(), c.problem) || all[0].WhatToDo == "":
			t.Errorf("%s: %v, want %q at %d:%d", name, err, c.problem, c.line, c.col)
		}
	}
}
