package console

import (
	"strings"
	"testing"
	"time"
)

func TestWords(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{Span(12 * time.Second), "12s"},
		{Span(125 * time.Second), "2m05s"},
		{Span(52 * time.Hour), "2d4h"},
		{Span(-time.Second), "0s"},
		{Plural(1, "path") + Plural(0, "path"), "1 path0 paths"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestTableAlignsByRune(t *testing.T) {
	tab := NewTable("NAME", ">N", "NOTE")
	tab.Row("é", "1", "x")
	tab.Row("long", "1234")
	var b strings.Builder
	tab.Write(&b, Painter{}, "  ")
	want := "  NAME     N  NOTE\n  é        1  x\n  long  1234\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	b.Reset()
	NewTable("A").Write(&b, Painter{true}, "")
	if b.String() != "" {
		t.Errorf("an empty table writes %q", b.String())
	}
}

// A cell that is too long for the terminal gets a line of its own.
func TestTableFits(t *testing.T) {
	tab := NewTable("NAME", ">N")
	tab.Row("short", "1")
	tab.Row("much longer", "2")
	for width, want := range map[int]string{
		0:  "  NAME         N\n  short        1\n  much longer  2\n",
		16: "  NAME         N\n  short        1\n  much longer  2\n",
		15: "  NAME   N\n  short  1\n  much longer\n         2\n",
		1:  "  NAME  N\n  short\n        1\n  much longer\n        2\n",
	} {
		var b strings.Builder
		tab.Fit(width)
		tab.Write(&b, Painter{}, "  ")
		if b.String() != want {
			t.Errorf("width %d: got\n%s\nwant\n%s", width, b.String(), want)
		}
	}
}

func TestColourOnlyOnTerminals(t *testing.T) {
	if s := (Painter{}).Bad("x"); s != "x" {
		t.Errorf("got %q", s)
	}
	if s := (Painter{true}).Bad("x"); s != "\x1b[31mx\x1b[0m" {
		t.Errorf("got %q", s)
	}
}

// A cell that is too long for the terminal gets a line of its own.
func TestGridSpills(t *testing.T) {
	g := Grid{
		Columns: []Column{{Head: "NAME", Left: true}, {Head: "N"}}, Indent: "  ", Gap: "  ", Spill: true,
		Rows: []GridRow{{Cells: []Cell{{Text: "short"}, {Text: "1"}}}, {Cells: []Cell{{Text: "much longer"}, {Text: "2"}}}},
	}
	for width, want := range map[int]string{
		0:  "  NAME         N\n  short        1\n  much longer  2\n",
		16: "  NAME         N\n  short        1\n  much longer  2\n",
		15: "  NAME   N\n  short  1\n  much longer\n         2\n",
		1:  "  NAME  N\n  short\n        1\n  much longer\n        2\n",
	} {
		var b strings.Builder
		g.Write(&b, Painter{}, width)
		if b.String() != want {
			t.Errorf("width %d: got\n%s\nwant\n%s", width, b.String(), want)
		}
	}
}

// Without Spill, columns that do not fit follow below the others.
func TestGridContinuesBelow(t *testing.T) {
	g := Grid{
		Columns: []Column{{Head: "NAME", Left: true}, {Head: "A"}, {Head: "B", Marked: true}}, Gap: "  ",
		Rows: []GridRow{{Cells: []Cell{{Text: "x"}, {Text: "12"}, {Text: "3", Best: true}}}, {Cells: []Cell{{Text: "y"}}, Note: "none"}},
	}
	var b strings.Builder
	g.Write(&b, Painter{}, 9)
	if want := "NAME   A\nx     12\n\nNAME  B\nx     3*\ny     none\n"; b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
