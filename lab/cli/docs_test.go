package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	tcpilot "github.com/tcpilot/tcpilot/internal/cli"
)

// shown matches a command line of tcpilot in a block or a span of code: alone, after a prompt or sudo, or
// behind another command.
var shown = regexp.MustCompile(`(?:^|[|&(;] |\$ )(?:sudo )?(?:bin/)?tcpilot ([^|&;#)>]*)`)

// code matches blocks and spans of code.
var code = regexp.MustCompile("(?s)```[a-z]*\n(.*?)```|`([^`\n]+)`")

// The commands and flags that the documentation shows exist.
func TestCommandsOfTheDocumentation(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, page := range append(pages, "../../README.md", "../../CONTRIBUTING.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range code.FindAllStringSubmatch(string(text), -1) {
			for line := range strings.Lines(m[1] + m[2]) {
				for _, m := range shown.FindAllStringSubmatch(strings.TrimSpace(line), -1) {
					if strings.HasPrefix(m[1], "is not running") || strings.HasPrefix(m[1], "(") {
						continue // what it writes
					}
					n++
					if wrong := checkLine(strings.Fields(m[1])); wrong != "" {
						t.Errorf("%s: tcpilot %s: %s", filepath.Base(page), m[1], wrong)
					}
				}
			}
		}
	}
	if n < 200 {
		t.Errorf("only %d commands were found", n)
	}
}

// checkLine says what of a command line does not exist.
func checkLine(args []string) string {
	root := tcpilot.New(tcpilot.Env{})
	if len(args) > 0 && args[0] == "lab" {
		root, args = newRoot(Env{}), args[1:]
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err.Error()
	}
	if len(rest) > 0 && cmd.HasAvailableSubCommands() && !strings.HasPrefix(rest[0], "-") && rest[0] != "COMMAND" {
		return "no command " + rest[0]
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	for _, arg := range rest {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case name == "" || !strings.HasPrefix(arg, "-"):
		case strings.HasPrefix(arg, "--") && flagOf(cmd, name), !strings.HasPrefix(arg, "--") && cmd.Flags().ShorthandLookup(name[:1]) != nil:
		default:
			return "no flag " + arg
		}
	}
	return ""
}

func flagOf(cmd *cobra.Command, name string) bool {
	return cmd.Flags().Lookup(name) != nil || cmd.InheritedFlags().Lookup(name) != nil
}
