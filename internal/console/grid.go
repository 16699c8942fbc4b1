package console

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Grid is a table, to be written for a terminal or as Markdown.
type Grid struct {
	Columns []Column
	Rows    []GridRow
	// Indent is written before each line, Gap between columns (terminal only).
	Indent, Gap string
	// Spill puts a cell of the first column on a line of its own if the line would be too
	// long. Without Spill, columns that do not fit follow below the others.
	Spill bool
}

// Column is a column of a Grid.
type Column struct {
	Head, Unit string
	Left       bool // left-aligned
	Marked     bool // has a best cell
	Tight      bool // one blank after the previous column, instead of Gap
}

// GridRow has a cell for each column; the last ones may be missing. Or it has only the first
// cell and a note across the other columns.
type GridRow struct {
	Cells []Cell
	Note  string
}

// Cell is one value in a Grid.
type Cell struct {
	Text string
	Tone Tone
	Best bool // the best of its column
}

// TextCell is a cell with text that may contain control characters.
func TextCell(text string) Cell { return Cell{Text: Clean(text)} }

// gap is the text before a column.
func (g *Grid) gap(column int) string {
	if g.Columns[column].Tight {
		return " "
	}
	return g.Gap
}

// Write writes the grid for a terminal of a width; 0 is no limit.
func (g *Grid) Write(w io.Writer, p Painter, width int) {
	widths := g.widths()
	if width > 0 && g.Spill {
		g.narrow(widths, width)
	}
	for from := 1; from < len(g.Columns) || from == 1; {
		columns, used := []int{0}, utf8.RuneCountInString(g.Indent)+widths[0]
		for from < len(g.Columns) && (width <= 0 || g.Spill || len(columns) == 1 || used+len(g.gap(from))+widths[from] <= width) {
			used += len(g.gap(from)) + widths[from]
			columns = append(columns, from)
			from++
		}
		g.block(w, p, columns, widths, width, from >= len(g.Columns))
		if from >= len(g.Columns) {
			return
		}
		fmt.Fprintln(w)
	}
}

// narrow sets the width of the first column to that of its longest cell with which the line
// still fits.
func (g *Grid) narrow(widths []int, width int) {
	room := width - utf8.RuneCountInString(g.Indent)
	for i := 1; i < len(widths); i++ {
		room -= len(g.gap(i)) + widths[i]
	}
	if widths[0] <= room {
		return
	}
	widths[0] = utf8.RuneCountInString(g.shown(0, Cell{Text: g.Columns[0].Head}))
	for _, r := range g.Rows {
		if n := utf8.RuneCountInString(g.shown(0, r.cell(0))); n <= room {
			widths[0] = max(widths[0], n)
		}
	}
}

// block writes some of the columns; notes are written with the last ones.
func (g *Grid) block(w io.Writer, p Painter, columns, widths []int, width int, notes bool) {
	var heads, units GridRow
	hasUnit := false
	for _, c := range g.Columns {
		heads.Cells = append(heads.Cells, Cell{Text: c.Head, Tone: Strong})
		units.Cells = append(units.Cells, Cell{Text: c.Unit, Tone: Faint})
	}
	for _, i := range columns {
		hasUnit = hasUnit || g.Columns[i].Unit != ""
	}
	g.line(w, p, heads, columns, widths)
	if hasUnit {
		g.line(w, p, units, columns, widths)
	}
	for _, r := range g.Rows {
		switch {
		case r.Note != "" && notes:
			g.note(w, p, r, widths[0], width)
		case r.Note != "":
		default:
			if first := g.shown(0, r.cell(0)); utf8.RuneCountInString(first) > widths[0] {
				fmt.Fprintf(w, "%s%s\n", g.Indent, p.Paint(r.cell(0).Tone, first))
				r.Cells = append([]Cell{{}}, r.Cells[1:]...)
			}
			g.line(w, p, r, columns, widths)
		}
	}
}

func (g *Grid) note(w io.Writer, p Painter, r GridRow, first, width int) {
	begin := utf8.RuneCountInString(g.Indent) + first + len(g.Gap)
	head := g.Indent + pad(r.cell(0).Text, first, true)
	fmt.Fprintf(w, "%s%s%s\n", p.Paint(Faint, head), g.Gap, p.Paint(Faint, Fold(r.Note, width-begin, strings.Repeat(" ", begin))))
}

func (g *Grid) line(w io.Writer, p Painter, r GridRow, columns, widths []int) {
	var b strings.Builder
	b.WriteString(g.Indent)
	for n, i := range columns {
		if n > 0 {
			b.WriteString(g.gap(i))
		}
		c := r.cell(i)
		text := pad(g.shown(i, c), widths[i], g.Columns[i].Left)
		trimmed := strings.TrimSpace(text)
		before, after, _ := strings.Cut(text, trimmed)
		b.WriteString(before + p.Paint(c.Tone, trimmed) + after)
	}
	fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
}

func (r GridRow) cell(i int) Cell {
	if i < len(r.Cells) {
		return r.Cells[i]
	}
	return Cell{}
}

// shown is the cell's text with room for the mark of the best in its column.
func (g *Grid) shown(i int, c Cell) string {
	switch {
	case c.Best:
		return c.Text + "*"
	case g.Columns[i].Marked:
		return c.Text + " "
	}
	return c.Text
}

func (g *Grid) widths() []int {
	widths := make([]int, len(g.Columns))
	for i, c := range g.Columns {
		widths[i] = utf8.RuneCountInString(g.shown(i, Cell{Text: c.Head}))
		for _, r := range g.Rows {
			if i < len(r.Cells) {
				widths[i] = max(widths[i], utf8.RuneCountInString(g.shown(i, r.Cells[i])))
			}
		}
	}
	return widths
}

// Markdown writes the grid as a table of Markdown; the best are bold.
func (g *Grid) Markdown(w io.Writer) {
	for _, c := range g.Columns {
		head := c.Head
		if c.Unit != "" {
			head += ", " + c.Unit
		}
		fmt.Fprintf(w, "| %s ", Escape(head))
	}
	fmt.Fprintln(w, "|")
	for _, c := range g.Columns {
		if c.Left {
			fmt.Fprint(w, "|---")
		} else {
			fmt.Fprint(w, "|---:")
		}
	}
	fmt.Fprintln(w, "|")
	for _, r := range g.Rows {
		if r.Note != "" {
			r.Cells = []Cell{r.cell(0), {Text: r.Note}}
		}
		for i := range g.Columns {
			c := r.cell(i)
			text := Escape(c.Text)
			if c.Best {
				text = "**" + text + "**"
			}
			fmt.Fprintf(w, "| %s ", text)
		}
		fmt.Fprintln(w, "|")
	}
}
