package report

import (
	"bufio"
	"fmt"
	"io"

	"github.com/tcpilot/tcpilot/internal/console"
)

// Markdown writes a report as Markdown: one section per case.
func Markdown(w io.Writer, r *Report) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s\n", console.Escape(runLine(r)))
	for _, problem := range problems(r) {
		fmt.Fprintf(b, "\n**%s**\n", console.Escape(problem))
	}
	if r.Run.Command != "" {
		fmt.Fprintf(b, "\n    %s\n", console.Clean(r.Run.Command))
	}
	for _, c := range r.Cases {
		markdownCase(b, c)
	}
	fmt.Fprintf(b, "\nMedians of the rounds ± the wider half of their 95 %% confidence interval (by order statistics; 93.75 %% for five rounds, none for fewer); "+
		"ratios are medians over pairs of alternating rounds; **best**; ~ no significant difference from the baseline.\n")
	return b.Flush()
}

func markdownCase(w io.Writer, c *CaseRounds) {
	s := c.summarise()
	fmt.Fprintf(w, "\n### %s\n\n%s.", console.Escape(s.fullName()), console.Escape(s.Title))
	if link := linkLine(&s); link != "" {
		fmt.Fprintf(w, " Link: %s.", console.Escape(link))
	}
	fmt.Fprint(w, "\n\n")
	if s.Refused != "" {
		fmt.Fprintf(w, "Refused: %s.\n", console.Escape(s.Refused))
		if len(c.Rounds) == 0 {
			return
		}
		fmt.Fprintln(w)
	}
	g := caseGrid(&s)
	g.Markdown(w)
	if s.Ratios {
		fmt.Fprintln(w)
		ratios := ratiosGrid(&s)
		ratios.Markdown(w)
		fmt.Fprintf(w, "\n%s\n", console.Escape(ratiosLegend))
	}
	for i, note := range notes(&s) {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "- %s\n", console.Escape(note))
	}
}
