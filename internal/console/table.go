package console

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// None stands for a number that is not known.
const None = "-"

// Span writes a time that something has lasted: 3h12m, 2d4h, 12s.
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

// Plural counts things.
func Plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// Table aligns columns. A heading that starts with ">" makes its column
// right-aligned.
type Table struct {
	heads []string
	rows  [][]string
	width int // see Fit
}

// NewTable returns a table without rows.
func NewTable(heads ...string) *Table { return &Table{heads: heads} }

// Row adds a row.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Fit keeps the table within width columns, 0 for no limit: a cell of the first column that
// is too long stands on a line of its own, above the rest of its row.
func (t *Table) Fit(width int) { t.width = width }

// Write prints the table with each line indented; without rows it prints
// nothing.
func (t *Table) Write(w io.Writer, p Painter, indent string) {
	if len(t.rows) == 0 {
		return
	}
	heads := make([]string, len(t.heads))
	for i, h := range t.heads {
		heads[i] = strings.TrimPrefix(h, ">")
	}
	widths := t.widths(heads, len(indent))
	fmt.Fprintf(w, "%s%s\n", indent, p.Bold(t.line(heads, widths)))
	for _, r := range t.rows {
		if len(r) > 0 && utf8.RuneCountInString(r[0]) > widths[0] {
			fmt.Fprintf(w, "%s%s\n", indent, r[0])
			r = append([]string{""}, r[1:]...)
		}
		fmt.Fprintf(w, "%s%s\n", indent, t.line(r, widths))
	}
}

// widths are those of the columns; the first one is narrower than its longest cell if the
// table would not fit otherwise.
func (t *Table) widths(heads []string, indent int) []int {
	const gap = 2
	widths := make([]int, len(heads))
	total := indent - gap
	for i, h := range heads {
		widths[i] = utf8.RuneCountInString(h)
		for _, r := range t.rows {
			if i < len(r) {
				widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
			}
		}
		total += widths[i] + gap
	}
	if t.width == 0 || total <= t.width {
		return widths
	}
	room := widths[0] - (total - t.width)
	widths[0] = utf8.RuneCountInString(heads[0])
	for _, r := range t.rows {
		if n := utf8.RuneCountInString(r[0]); n <= room {
			widths[0] = max(widths[0], n)
		}
	}
	return widths
}

func (t *Table) line(cells []string, widths []int) string {
	var b strings.Builder
	for i, c := range cells {
		if i > 0 {
			b.WriteString("  ")
		}
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
		if strings.HasPrefix(t.heads[i], ">") {
			b.WriteString(pad + c)
		} else {
			b.WriteString(c + pad)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// Painter colours text on a terminal.
type Painter struct{ On bool }

func (p Painter) paint(code, s string) string {
	if !p.On || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p Painter) Bold(s string) string { return p.paint("1", s) }
func (p Painter) Warn(s string) string { return p.paint("33", s) }
func (p Painter) Bad(s string) string  { return p.paint("31", s) }
