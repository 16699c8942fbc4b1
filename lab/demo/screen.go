package demo

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/tcpilot/tcpilot/internal/console"
)

// screen writes the demo's output: with colours and block characters on a terminal, as
// plain text elsewhere.
type screen struct {
	out   io.Writer
	paint console.Painter // On: a terminal
	scale float64         // goodput of a full bar, bit/s
}

// barWidth is the length of a full bar, in characters.
const barWidth = 30

func (s *screen) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }

func (s *screen) bold(text string) string { return s.paint.Bold(text) }
func (s *screen) dim(text string) string  { return s.paint.Paint(console.Faint, text) }

// tones are the colours of the demo's congestion controls; reno has none.
var tones = map[string]console.Tone{"cubic": console.Warn, "bbr": console.Good}

// connection writes one connection's line; note may be empty.
func (s *screen) connection(n, of int, cc string, goodput float64, note string) {
	line := fmt.Sprintf("  %2d/%d %-6s%s %11s", n, of, cc, s.bar(goodput, cc), console.BitRate(goodput))
	if note != "" {
		line += "   " + s.dim(note)
	}
	s.printf("%s\n", line)
}

// bar draws a goodput, on a terminal with a resolution of an eighth of a character.
func (s *screen) bar(goodput float64, cc string) string {
	length := min(1, goodput/s.scale) * barWidth
	if !s.paint.On {
		n := int(math.Round(length))
		return strings.Repeat("#", n) + strings.Repeat(".", barWidth-n)
	}
	whole := int(length)
	bar := strings.Repeat("█", whole)
	if part := int((length - float64(whole)) * 8); part > 0 {
		bar += string([]rune(" ▏▎▍▌▋▊▉")[part])
		whole++
	}
	return s.paint.Paint(tones[cc], bar) + strings.Repeat(" ", barWidth-whole)
}

// summary compares the goodput without tcpilot with that of the last n connections.
func (s *screen) summary(before, after float64, n int, p path) {
	s.printf("\n%s\n", s.bold("Result"))
	s.printf("  without tcpilot      %12s\n", console.BitRate(before))
	s.printf("  with tcpilot         %12s   (the last %d connections)\n", console.BitRate(after), n)
	if before > 0 {
		s.printf("  gain                   %s\n", s.bold(fmt.Sprintf("%9.1fx", after/before)))
	}
	if g := p.HoldOut.Gain; g.High > 0 {
		s.printf("  against the hold-out   %9.1fx   (%.1f to %.1f; %.0f %% of connections, %d here, keep the kernel's defaults,\n"+
			"                                    so that tcpilot can measure its gain all the time)\n",
			g.Ratio, g.Low, g.High, holdOut*100, p.HoldOut.Count)
	} else {
		s.printf("  against the hold-out: %d of these few connections had the kernel's defaults, too few to compare with\n", p.HoldOut.Count)
	}
}
