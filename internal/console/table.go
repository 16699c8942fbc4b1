package console

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// None stands for a number that is not known.
const None = "-"

// Span writes a duration in its two greatest units: 3h12m, 2d4h, 12s.
func Span(d time.Duration) string {
	d = max(0, d.Round(time.Second))
	days, hours, minutes, seconds := int(d/(24*time.Hour)), int(d.Hours())%24, int(d.Minutes())%60, int(d.Seconds())%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd%dh", days, hours)
	case hours > 0:
		return fmt.Sprintf("%dh%02dm", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%dm%02ds", minutes, seconds)
	}
	return fmt.Sprintf("%ds", seconds)
}

// Plural writes a number with its noun, in the plural unless the number is 1.
func Plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// Table is a Grid of plain text. A heading that starts with ">" makes its column
// right-aligned.
type Table struct {
	grid  Grid
	width int // see Fit
}

// NewTable returns a table without rows.
func NewTable(heads ...string) *Table {
	t := &Table{grid: Grid{Gap: "  ", Spill: true}}
	for _, h := range heads {
		head, right := strings.CutPrefix(h, ">")
		t.grid.Columns = append(t.grid.Columns, Column{Head: head, Left: !right})
	}
	return t
}

// Row adds a row.
func (t *Table) Row(cells ...string) {
	var r GridRow
	for _, c := range cells {
		r.Cells = append(r.Cells, Cell{Text: c})
	}
	t.grid.Rows = append(t.grid.Rows, r)
}

// Fit keeps the table within width columns, 0 for no limit: a cell of the first column that
// is too long gets a line of its own, above the rest of its row.
func (t *Table) Fit(width int) { t.width = width }

// Write prints the table with each line indented; without rows it prints
// nothing.
func (t *Table) Write(w io.Writer, p Painter, indent string) {
	if len(t.grid.Rows) == 0 {
		return
	}
	t.grid.Indent = indent
	t.grid.Write(w, p, t.width)
}
