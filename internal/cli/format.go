package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
)

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
	v, prefix := console.Prefix(v)
	if prefix == "" {
		return strconv.FormatFloat(v, 'f', 0, 64) + " " + unit
	}
	return three(v) + " " + prefix + unit
}

// fmtBytes writes an amount of data: 1.20 MB.
func fmtBytes(n uint64) string { return scaled(float64(n), "B") }

// fmtRate writes bytes per second in bits per second: 94.1 Mbit/s.
func fmtRate(bytesPerSecond float64) string {
	if bytesPerSecond <= 0 {
		return console.None
	}
	return scaled(8*bytesPerSecond, "bit/s")
}

// fmtDuration writes a duration that was measured: 12.3 ms.
func fmtDuration(d time.Duration) string {
	switch {
	case d <= 0:
		return console.None
	case d < time.Microsecond:
		return fmt.Sprintf("%d ns", d.Nanoseconds())
	case d < time.Millisecond:
		return three(float64(d)/float64(time.Microsecond)) + " us"
	case d < time.Second:
		return three(float64(d)/float64(time.Millisecond)) + " ms"
	case d < 100*time.Second:
		return three(d.Seconds()) + " s"
	}
	return console.Span(d)
}

func fmtMicros(us uint32) string { return fmtDuration(time.Duration(us) * time.Microsecond) }

// fmtAgo writes how long ago t was.
func fmtAgo(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return console.Span(now.Sub(t)) + " ago"
}

// fmtTime writes a time in the user's time zone.
func fmtTime(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05 MST") }

// fmtShare writes a share as a percentage.
func fmtShare(f float64) string { return strconv.FormatFloat(100*f, 'f', 1, 64) + "%" }

// fmtConfigured writes a configured share with as many digits as in the file.
func fmtConfigured(f float64) string {
	return strconv.FormatFloat(math.Round(1e8*f)/1e6, 'f', -1, 64) + "%"
}

// fmtGain writes by what factor connections are faster than the hold-out, with its interval;
// "-" if there is no interval.
func fmtGain(g engine.Gain) string {
	if !g.Known() {
		return "-"
	}
	how := ""
	if g.BySingles() {
		how = ", by " + g.BySlice.String()
	}
	interval := fmt.Sprintf("%.2fx to %.2fx%s", g.Low, g.High, how)
	if !g.Better() && !g.Worse() {
		return "unclear (" + interval + ")"
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

// wrap joins items with ", " into lines of at most width characters.
func wrap(items []string, width int, indent string) string {
	items = slices.Clone(items)
	for i := range len(items) - 1 {
		items[i] += ","
	}
	return console.FoldItems(items, width, indent)
}
