package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/scenario"
)

func completeScenarios(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return scenario.Names(), cobra.ShellCompDirectiveDefault // files too
}

// completeFlags registers the completion of values for those flags of lab commands that
// cmd has.
func completeFlags(cmd *cobra.Command) {
	for name, values := range map[string]cobra.CompletionFunc{
		"backend": cobra.FixedCompletions([]string{string(link.Auto), string(link.Netem), string(link.Emulator)}, cobra.ShellCompDirectiveNoFileComp),
		"case":    ofScenarios(func(c scenario.Case) []string { return []string{c.Name} }),
		"subject": ofScenarios(func(c scenario.Case) (names []string) {
			for _, s := range c.Subjects {
				names = append(names, s.Name)
			}
			return append(names, scenario.SubjectNames()...)
		}),
	} {
		if cmd.Flags().Lookup(name) != nil {
			cobra.CheckErr(cmd.RegisterFlagCompletionFunc(name, values))
		}
	}
}

// ofScenarios completes from the cases of the scenarios that are already on the command
// line, or of all if there is none. Scenarios that cannot be read are left out.
func ofScenarios(of func(scenario.Case) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, names []string, _ string) (all []string, _ cobra.ShellCompDirective) {
		if len(names) == 0 {
			names = scenario.Names()
		}
		quick, _ := cmd.Flags().GetBool("quick")
		for _, name := range names {
			s, err := scenario.Load(name, scenario.Options{Quick: quick})
			if err != nil {
				continue
			}
			for _, c := range s.Cases {
				all = append(all, of(c)...)
			}
		}
		slices.Sort(all)
		all = slices.DeleteFunc(slices.Compact(all), func(name string) bool { return name == "" })
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}
