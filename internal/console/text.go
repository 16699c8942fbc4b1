package console

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Tone is the emphasis of a text on a terminal.
type Tone string

// The tones.
const (
	Plain  Tone = ""
	Strong Tone = "strong"
	Good   Tone = "good"
	Warn   Tone = "warn"
	Bad    Tone = "bad"
	Faint  Tone = "faint"
)

// codes are escape sequences of the terminal, by tone.
var codes = map[Tone]string{Strong: "1", Good: "32", Warn: "33", Bad: "31", Faint: "2"}

// Painter colours text on a terminal.
type Painter struct{ On bool }

// Paint gives text a tone.
func (p Painter) Paint(t Tone, text string) string {
	if !p.On || t == Plain || text == "" {
		return text
	}
	return "\x1b[" + codes[t] + "m" + text + "\x1b[0m"
}

func (p Painter) Bold(s string) string { return p.Paint(Strong, s) }
func (p Painter) Warn(s string) string { return p.Paint(Warn, s) }
func (p Painter) Bad(s string) string  { return p.Paint(Bad, s) }

// Clean replaces control characters, which a terminal would interpret. Names from files may
// contain them.
func Clean(text string) string {
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

// Fold breaks text into lines of at most width characters; all but the first
// begin with indent.
func Fold(text string, width int, indent string) string {
	return FoldItems(strings.Fields(Clean(text)), width, indent)
}

// FoldItems is Fold for items that may contain spaces; it breaks lines only between items.
func FoldItems(items []string, width int, indent string) string {
	var b strings.Builder
	at := 0
	for _, item := range items {
		n := utf8.RuneCountInString(item)
		switch {
		case at > 0 && at+1+n > width:
			b.WriteString("\n" + indent)
			at = 0
		case at > 0:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(item)
		at += n
	}
	return b.String()
}

// Escape escapes the special characters of Markdown and HTML.
func Escape(text string) string { return markup.Replace(Clean(text)) }

var markup = strings.NewReplacer(
	"|", `\|`, "<", "&lt;", ">", "&gt;", "&", "&amp;", "*", `\*`, "`", "\\`", "[", `\[`, "]", `\]`,
)

func pad(text string, width int, left bool) string {
	space := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
	if left {
		return text + space
	}
	return space + text
}
