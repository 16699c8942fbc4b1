package cli

import (
	"fmt"
	"github.com/tcpilot/tcpilot/internal/engine"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// none stands for a number that is not known.
const none = "-"

// three writes v with three significant digits: 0.12, 1.23, 12.3, 123, 1234.
func three(v float64) string {
	a := math.Abs(v)
	switch {
	case a >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// scaled writes v with the largest prefix that leaves at least 1.
func scaled(v float64, unit string) string {
	for _, p := range []struct {
		size   float64
		prefix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= p.size*0.9995 {
			return three(v/p.size) + " " + p.prefix + unit
		}
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + " " + unit
}

// fmtBytes writes an amount of data: 1.20 MB.
func fmtBytes(n uint64) string { return scaled(float64(n), "B") }

// fmtRate writes bytes per second as people read rates: 94.1 Mbit/s.
func fmtRate(bytesPerSecond float64) string {
	if bytesPerSecond <= 0 {
		return none
	}
	return scaled(8*bytesPerSecond, "bit/s")
}

// fmtDuration writes a duration that was measured: 12.3 ms.
func fmtDuration(d time.Duration) string {
	switch {
	case d <= 0:
		return none
	case d < time.Microsecond:
		return fmt.Sprintf("%d ns", d.Nanoseconds())
	case d < time.Millisecond:
		return three(float64(d)/float64(time.Microsecond)) + " us"
	case d < time.Second:
		return three(float64(d)/float64(time.Millisecond)) + " ms"
	case d < 100*time.Second:
		return three(d.Seconds()) + " s"
	}
	return fmtSpan(d)
}

func fmtMicros(us uint32) string { return fmtDuration(time.Duration(us) * time.Microsecond) }

// fmtSpan writes a time that something has lasted: 3h12m, 2d4h, 12s.
func fmtSpan(d time.Duration) string {
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

// fmtAgo writes how long ago t was.
func fmtAgo(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return fmtSpan(now.Sub(t)) + " ago"
}

// fmtTime writes a moment in the user's zone.
func fmtTime(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05 MST") }

// fmtShare writes a share as a percentage.
func fmtShare(f float64) string { return strconv.FormatFloat(100*f, 'f', 1, 64) + "%" }

// fmtGain writes by what factor connections are faster than those held out, with its
// interval; without one there is nothing to say.
func fmtGain(g engine.Gain) string {
	if !g.Known() {
		return "-"
	}
	how := ""
	if !g.BySlice {
		how = ", by connections"
	}
	interval := fmt.Sprintf("%.2fx to %.2fx%s", g.Low, g.High, how)
	if !g.Better() && !g.Worse() {
		return "not told apart (" + interval + ")"
	}
	return fmt.Sprintf("%.2fx (%s)", g.Ratio, interval)
}

func fmtCount(n uint64) string { return strconv.FormatUint(n, 10) }

// fmtValue writes a field's value in the unit that tcp.FieldSpec gives it.
func fmtValue(v uint64, unit string) string {
	switch unit {
	case "":
		return fmtCount(v)
	case "us":
		return fmtDuration(time.Duration(v) * time.Microsecond)
	case "ms":
		return fmtDuration(time.Duration(v) * time.Millisecond)
	case "s":
		return fmtDuration(time.Duration(v) * time.Second)
	case "B/s":
		return fmtRate(float64(v))
	}
	return fmtCount(v) + " " + unit // bytes are exact: they were set
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// table aligns columns. A heading that starts with ">" makes its column
// right-aligned.
type table struct {
	heads []string
	rows  [][]string
}

func newTable(heads ...string) *table { return &table{heads: heads} }

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// write prints the table with each line indented; without rows it prints
// nothing.
func (t *table) write(w io.Writer, p painter, indent string) {
	if len(t.rows) == 0 {
		return
	}
	widths := make([]int, len(t.heads))
	heads := make([]string, len(t.heads))
	for i, h := range t.heads {
		heads[i] = strings.TrimPrefix(h, ">")
		widths[i] = utf8.RuneCountInString(heads[i])
		for _, r := range t.rows {
			if i < len(r) {
				widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
			}
		}
	}
	fmt.Fprintf(w, "%s%s\n", indent, p.bold(t.line(heads, widths)))
	for _, r := range t.rows {
		fmt.Fprintf(w, "%s%s\n", indent, t.line(r, widths))
	}
}

func (t *table) line(cells []string, widths []int) string {
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

// painter colours text on a terminal.
type painter struct{ on bool }

func (p painter) paint(code, s string) string {
	if !p.on || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p painter) bold(s string) string { return p.paint("1", s) }
func (p painter) warn(s string) string { return p.paint("33", s) }
func (p painter) bad(s string) string  { return p.paint("31", s) }

// wrap joins words with ", " into lines of at most width characters.
func wrap(words []string, width int, indent string) string {
	words = slices.Clone(words)
	var b strings.Builder
	col := 0
	for i, w := range words {
		if i < len(words)-1 {
			w += ","
		}
		if col > 0 && col+1+len(w) > width {
			b.WriteString("\n" + indent)
			col = 0
		} else if col > 0 {
			b.WriteString(" ")
			col++
		}
		b.WriteString(w)
		col += len(w)
	}
	return b.String()
}
