package demo

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// screen writes the demo's output: with colours and block characters on a terminal, as
// plain text elsewhere.
type screen struct {
	out      io.Writer
	terminal bool
	scale    float64 // goodput of a full bar, bit/s
}

// barWidth is the length of a full bar, in characters.
const barWidth = 30

func (s *screen) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }

func (s *screen) bold(text string) string { return s.style("1", text) }
func (s *screen) dim(text string) string  { return s.style("2", text) }

func (s *screen) style(code, text string) string {
	if !s.terminal {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// colours are those of the demo's congestion controls.
var colours = map[string]string{"cubic": "33", "bbr": "32", "reno": "35"}

// connection writes one connection's line; note may be empty.
func (s *screen) connection(n, of int, cc string, goodput float64, note string) {
	line := fmt.Sprintf("  %2d/%d %-6s%s %11s", n, of, cc, s.bar(goodput, cc), mbit(goodput))
	if note != "" {
		line += "   " + s.dim(note)
	}
	s.printf("%s\n", line)
}

// bar draws a goodput, on a terminal with a resolution of an eighth of a character.
func (s *screen) bar(goodput float64, cc string) string {
	length := min(1, goodput/s.scale) * barWidth
	if !s.terminal {
		n := int(math.Round(length))
		return strings.Repeat("#", n) + strings.Repeat(".", barWidth-n)
	}
	whole := int(length)
	bar := strings.Repeat("█", whole)
	if part := int((length - float64(whole)) * 8); part > 0 {
		bar += string([]rune(" ▏▎▍▌▋▊▉")[part])
		whole++
	}
	return s.style(colours[cc], bar) + strings.Repeat(" ", barWidth-whole)
}

// summary compares the goodput without tcpilot with that of the last n connections.
func (s *screen) summary(before, after float64, n int, p path) {
	s.printf("\n%s\n", s.bold("Result"))
	s.printf("  without tcpilot      %12s\n", mbit(before))
	s.printf("  with tcpilot         %12s   (the last %d connections)\n", mbit(after), n)
	if before > 0 {
		s.printf("  gain                   %s\n", s.bold(fmt.Sprintf("%9.1fx", after/before)))
	}
	if p.HoldOut.Count > 0 && p.HoldOut.Gain.Ratio > 0 {
		s.printf("  against the hold-out   %9.1fx   (%.0f %% of connections, %d here, keep the kernel's defaults,\n"+
			"                                    so that tcpilot can measure its gain all the time)\n",
			p.HoldOut.Gain.Ratio, holdOut*100, p.HoldOut.Count)
	} else {
		s.printf("  against the hold-out: none of these few connections was in the hold-out; run the demo again\n")
	}
}

// mbit formats a rate.
func mbit(bitsPerSecond float64) string { return fmt.Sprintf("%.1f Mbit/s", bitsPerSecond/1e6) }
