package yamlfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Decoder reads one file and collects all mistakes in it: it does not stop at the first one.
type Decoder struct {
	File   string // what errors call it
	Failed int    // number of mistakes met so far; one that is met again counts again

	errs Errors
	seen map[Error]bool
}

// Err returns the mistakes as Errors; nil if there are none.
func (d *Decoder) Err() error {
	if len(d.errs) == 0 {
		return nil
	}
	d.errs.sort()
	return d.errs
}

// Fail adds a mistake. The same one is reported once, although parts of a file that are merged
// into several others are read several times.
func (d *Decoder) Fail(at Place, problem, whatToDo string) {
	d.Failed++
	e := Error{d.File, max(1, at.Line), max(1, at.Col), at.Path, problem, whatToDo}
	if d.seen[e] {
		return
	}
	if d.seen == nil {
		d.seen = make(map[Error]bool)
	}
	d.seen[e] = true
	d.errs = append(d.errs, &e)
}

// Wrong reports an error in the value of n; an Error says what to do.
func (d *Decoder) Wrong(n *Node, err error) {
	if e := (*Error)(nil); errors.As(err, &e) {
		d.Fail(n.Place, e.Problem, e.WhatToDo)
		return
	}
	d.Fail(n.Place, err.Error(), "correct it")
}

// Unknown reports a name that is not one of the known ones: what says of what it is a name. If
// none of them is near, otherwise says what to do; empty lists them.
func (d *Decoder) Unknown(at Place, what, name string, known []string, otherwise string) {
	if near := Nearest(name, known); near != "" {
		otherwise = fmt.Sprintf("did you mean %q?", near)
	} else if otherwise == "" {
		otherwise = "there are " + strings.Join(known, ", ")
	}
	d.Fail(at, fmt.Sprintf("unknown %s %q", what, name), otherwise)
}

// Want reports whether n is of a kind, and if not, that it should be.
func (d *Decoder) Want(n *Node, k Kind) bool {
	if n.broken {
		d.Failed++
	}
	switch n.Kind {
	case k:
		return true
	case Null:
		d.Fail(n.Place, "the key has no value", "write one, or remove the key to have the default")
	case Text, List, Mapping:
		fix := map[Kind]string{
			Text:    "write one value",
			List:    `begin each entry with "- ", or put them in [ ]`,
			Mapping: "write key: value lines, or put them in { }",
		}
		d.Fail(n.Place, fmt.Sprintf("want %s, found %s", k, n.Kind), fix[k])
	}
	return false
}

// Values returns the elements of a list, which must not be empty; a single value is a list of one.
func (d *Decoder) Values(n *Node) []*Node {
	if n.Kind == Text {
		return []*Node{n}
	}
	if d.Want(n, List) && len(n.Items) == 0 {
		d.Fail(n.Place, "the list is empty", "write at least one value, or remove the key")
	}
	return n.Items
}

// Fields reads the entries of a mapping whose keys are known: read gets the index of the key,
// and the value. For an unknown key that is near none of them, otherwise says what to do; nil lists them.
func (d *Decoder) Fields(n *Node, keys []string, otherwise func(key string) string, read func(i int, value *Node)) {
	if !d.Want(n, Mapping) {
		return
	}
	for _, e := range n.Entries {
		i := slices.Index(keys, e.Key)
		switch {
		case i < 0 && otherwise != nil:
			d.Unknown(e.At, "key", e.Key, keys, otherwise(e.Key))
		case i < 0:
			d.Unknown(e.At, "key", e.Key, keys, "")
		case e.Value.Kind == Null:
			d.Want(e.Value, Text) // reports that it has no value
		default:
			read(i, e.Value)
		}
	}
}
