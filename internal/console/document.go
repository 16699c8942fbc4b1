package console

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Document writes a page of documentation, with a section for the root command and for each
// command below it.
func Document(w io.Writer, root *cobra.Command) {
	section(w, root)
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			continue // part of cobra, and long
		}
		if c.IsAvailableCommand() {
			section(w, c)
		}
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				section(w, sub)
			}
		}
	}
}

func section(w io.Writer, c *cobra.Command) {
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(w, "\n## %s\n\n```\n%s\n```\n", c.CommandPath(), c.UseLine())
	// Indented lines (tables) stay as they are.
	for block := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(block, "  ") {
			block = "```\n" + block + "\n```"
		}
		fmt.Fprintf(w, "\n%s\n", block)
	}
	flags := c.NonInheritedFlags()
	c.InitDefaultHelpFlag()
	rows := ""
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		def := ""
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" {
			def = "`" + f.DefValue + "`"
		}
		rows += fmt.Sprintf("| `%s` | %s | %s |\n", strings.TrimSpace(name+" "+kind), def, usage)
	})
	if rows != "" {
		fmt.Fprintf(w, "\n| flag | default | meaning |\n|---|---|---|\n%s", rows)
	}
	if c.Example != "" {
		fmt.Fprintf(w, "\n```\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
}
