package report

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Style is how a table is written to a terminal.
type Style struct {
	Colour bool
	Width  int // characters; 0 is 110
}

func (s Style) width() int {
	if s.Width <= 0 {
		return 110
	}
	return s.Width
}

// tone is what a cell stands out by.
type tone int

const (
	plain tone = iota
	strong
	good
	warn
	bad
	faint
)

// codes are the terminal's, by tone.
var codes = map[tone]string{strong: "1", good: "32", warn: "33", bad: "31", faint: "2"}

func (s Style) paint(t tone, text string) string {
	if !s.Colour || t == plain || text == "" {
		return text
	}
	return "\x1b[" + codes[t] + "m" + text + "\x1b[0m"
}

// grid is a table, to be written in several ways. Its first column names the
// rows; the others are right-aligned unless Left.
type grid struct {
	Columns []column
	Rows    []row
	Narrow  bool // less space between columns
}

type column struct {
	Head, Unit string
	Left       bool
	Marked     bool // has a best cell
	Tight      bool // belongs to the column before
}

func textCell(text string) cell { return cell{Text: clean(text)} }

// row has a cell for each column; or only the first and a note across the rest.
type row struct {
	Cells []cell
	Note  string
}

type cell struct {
	Text string
	Tone tone
	Best bool // of its column
}

func (g *grid) column(head, unit string) {
	g.Columns = append(g.Columns, column{Head: head, Unit: unit})
}

// gap is what is before a column.
func (g *grid) gap(column int) string {
	switch {
	case g.Columns[column].Tight:
		return " "
	case g.Narrow:
		return "  "
	}
	return gap
}

// Between columns, and before the first.
const (
	gap    = "   "
	indent = "  "
)

// text writes the grid for a terminal, and continues below with the columns that
// do not fit.
func (g *grid) text(w io.Writer, s Style) {
	widths := g.widths()
	for from := 1; from < len(g.Columns) || from == 1; {
		columns, width := []int{0}, len(indent)+widths[0]
		for from < len(g.Columns) && (len(columns) == 1 || width+len(g.gap(from))+widths[from] <= s.width()) {
			width += len(g.gap(from)) + widths[from]
			columns = append(columns, from)
			from++
		}
		g.block(w, s, columns, widths, from == len(g.Columns))
		if from >= len(g.Columns) {
			return
		}
		fmt.Fprintln(w)
	}
}

// block writes some columns; notes come with the last.
func (g *grid) block(w io.Writer, s Style, columns, widths []int, notes bool) {
	heads, units := make([]cell, len(g.Columns)), make([]cell, len(g.Columns))
	hasUnit := false
	for _, i := range columns {
		heads[i] = cell{Text: g.Columns[i].Head, Tone: strong}
		units[i] = cell{Text: g.Columns[i].Unit, Tone: faint}
		hasUnit = hasUnit || units[i].Text != ""
	}
	g.line(w, s, heads, columns, widths)
	if hasUnit {
		g.line(w, s, units, columns, widths)
	}
	for _, r := range g.Rows {
		if r.Note == "" {
			g.line(w, s, r.Cells, columns, widths)
		} else if notes {
			head := indent + pad(r.Cells[0].Text, widths[0], true)
			note := fold(r.Note, s.width()-len(indent)-widths[0]-len(gap), strings.Repeat(" ", len(indent)+widths[0]+len(gap)))
			fmt.Fprintf(w, "%s%s%s\n", s.paint(faint, head), gap, s.paint(faint, note))
		}
	}
}

func (g *grid) line(w io.Writer, s Style, cells []cell, columns, widths []int) {
	var b strings.Builder
	b.WriteString(indent)
	for n, i := range columns {
		if n > 0 {
			b.WriteString(g.gap(i))
		}
		text := pad(g.shown(i, cells[i]), widths[i], i == 0 || g.Columns[i].Left)
		trimmed := strings.TrimSpace(text)
		before, after, _ := strings.Cut(text, trimmed)
		b.WriteString(before + s.paint(cells[i].Tone, trimmed) + after)
	}
	fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
}

// shown is the cell's text with room for the mark of the best in its column.
func (g *grid) shown(i int, c cell) string {
	switch {
	case c.Best:
		return c.Text + "*"
	case g.Columns[i].Marked:
		return c.Text + " "
	}
	return c.Text
}

func (g *grid) widths() []int {
	widths := make([]int, len(g.Columns))
	for i, c := range g.Columns {
		widths[i] = utf8.RuneCountInString(g.shown(i, cell{Text: c.Head}))
	}
	for _, r := range g.Rows {
		for i, c := range r.Cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(g.shown(i, c)))
		}
	}
	return widths
}

// clean takes out what would steer a terminal: names come from files.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, text)
}

func pad(text string, width int, left bool) string {
	space := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
	if left {
		return text + space
	}
	return space + text
}

// fold breaks text into lines of at most width characters; all but the first
// begin with indent.
func fold(text string, width int, indent string) string {
	var b strings.Builder
	at := 0
	for word := range strings.FieldsSeq(clean(text)) {
		n := utf8.RuneCountInString(word)
		switch {
		case at > 0 && at+1+n > width:
			b.WriteString("\n" + indent)
			at = 0
		case at > 0:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// markdown writes the grid as a table of docs; the best are bold.
func (g *grid) markdown(w io.Writer) {
	for i, c := range g.Columns {
		head := c.Head
		if c.Unit != "" {
			head += ", " + c.Unit
		}
		fmt.Fprintf(w, "| %s ", escape(head))
		if i == len(g.Columns)-1 {
			fmt.Fprintln(w, "|")
		}
	}
	for i, c := range g.Columns {
		if i == 0 || c.Left {
			fmt.Fprint(w, "|---")
		} else {
			fmt.Fprint(w, "|---:")
		}
	}
	fmt.Fprintln(w, "|")
	for _, r := range g.Rows {
		cells := r.Cells
		if r.Note != "" {
			cells = []cell{r.Cells[0], {Text: r.Note}}
		}
		for i := range g.Columns {
			text := ""
			if i < len(cells) {
				text = escape(cells[i].Text)
				if cells[i].Best {
					text = "**" + text + "**"
				}
			}
			fmt.Fprintf(w, "| %s ", text)
		}
		fmt.Fprintln(w, "|")
	}
}

// escape keeps text from being Markdown or HTML.
func escape(text string) string { return markup.Replace(clean(text)) }

var markup = strings.NewReplacer(
	"|", `\|`, "<", "&lt;", ">", "&gt;", "&", "&amp;", "*", `\*`, "`", "\\`", "[", `\[`, "]", `\]`,
)
