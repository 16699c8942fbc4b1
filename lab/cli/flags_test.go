package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	tcpilot "github.com/tcpilot/tcpilot/internal/cli"
)

// A short flag stands for one long flag, and a long flag has one short form or none, in all commands of
// both programs. What a flag takes is written in capitals, as arguments are.
func TestFlagsAgree(t *testing.T) {
	long, short := map[string]string{}, map[string]string{} // by the other; short: by name
	check := func(cmd *cobra.Command) {
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" {
				return
			}
			at := cmd.CommandPath() + " --" + f.Name
			if name, ok := long[f.Shorthand]; ok && f.Shorthand != "" && name != f.Name {
				t.Errorf("%s: -%s is --%s elsewhere", at, f.Shorthand, name)
			}
			if s, ok := short[f.Name]; ok && s != f.Shorthand {
				t.Errorf("%s: its short form is %q, elsewhere %q", at, f.Shorthand, s)
			}
			long[f.Shorthand], short[f.Name] = f.Name, f.Shorthand
			if takes, _ := pflag.UnquoteUsage(f); takes != strings.ToUpper(takes) {
				t.Errorf("%s takes %q: write it in capitals", at, takes)
			}
		})
	}
	for _, root := range []*cobra.Command{tcpilot.New(tcpilot.Env{}), newRoot(Env{})} {
		for _, cmd := range root.Commands() {
			check(cmd)
			for _, sub := range cmd.Commands() {
				if cmd.Name() != "completion" { // cobra's
					check(sub)
				}
			}
		}
	}
	if len(short) < 30 {
		t.Errorf("only %d flags were found", len(short))
	}
}
