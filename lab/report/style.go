package report

import "github.com/tcpilot/tcpilot/internal/console"

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

func (s Style) painter() console.Painter { return console.Painter{On: s.Colour} }

func (s Style) paint(t console.Tone, text string) string { return s.painter().Paint(t, text) }

// Space between the columns of a table, and before the first.
const (
	gap    = "   "
	indent = "  "
)
