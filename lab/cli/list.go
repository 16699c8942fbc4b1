package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/experiment"
	"github.com/tcpilot/tcpilot/lab/scenario"
)

// scenarioLine is a line of lab list.
type scenarioLine struct {
	Name  string        `json:"name"`
	Title string        `json:"title"`
	Cases []string      `json:"cases,omitempty"`
	Needs []string      `json:"needs,omitempty"`
	Takes time.Duration `json:"takes_ns"`
	Quick time.Duration `json:"quick_ns"`
}

func (a *app) list() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "The scenarios that come with tcpilot",
		Long:  `List the scenarios that come with tcpilot, and about how long each takes.`,
		Args:  console.Args(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			list, err := scenarios()
			if err != nil {
				return err
			}
			return console.EmitValue(a.Output, list, a.renderScenarios)
		},
	}
	a.JSONFlag(cmd, "write a JSON document")
	return cmd
}

func scenarios() (list []scenarioLine, err error) {
	for _, name := range scenario.Names() {
		whole, err := scenario.Load(name, scenario.Options{})
		if err != nil {
			return nil, err
		}
		quick, err := scenario.Load(name, scenario.Options{Quick: true})
		if err != nil {
			return nil, err
		}
		s := scenarioLine{Name: name, Title: whole.Title, Needs: whole.Needs}
		if s.Takes, err = takes(whole); err != nil {
			return nil, err
		}
		if s.Quick, err = takes(quick); err != nil {
			return nil, err
		}
		for _, c := range whole.Cases {
			if c.Name != "" {
				s.Cases = append(s.Cases, c.Name)
			}
		}
		list = append(list, s)
	}
	return list, nil
}

// takes estimates how long a scenario takes on this machine.
func takes(s *scenario.Scenario) (time.Duration, error) {
	return experiment.Options{Scenarios: []*scenario.Scenario{s}}.Estimate()
}

func (a *app) renderScenarios(w io.Writer, list []scenarioLine) {
	t := console.NewTable("SCENARIO", ">TAKES", ">QUICK", "WHAT")
	for _, s := range list {
		t.Row(s.Name, console.Span(s.Takes), console.Span(s.Quick), s.Title)
	}
	t.Write(w, a.Paint, "")
}

func (a *app) clean() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove what killed runs left",
		Long: `Remove the namespaces, processes, cgroups (with the programs that a tuner left
attached to them), directories and mounts of runs whose process has ended. Runs that
are still active are left alone.`,
		Args: console.Args(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			removed, err := a.Clean()
			if removed == nil {
				removed = []string{}
			}
			if perr := console.EmitValue(a.Output, removed, renderRemoved); perr != nil && err == nil {
				err = perr
			}
			return err
		},
	}
	a.JSONFlag(cmd, "write a JSON list")
	return cmd
}

func renderRemoved(w io.Writer, removed []string) {
	for _, name := range removed {
		fmt.Fprintf(w, "removed %s\n", name)
	}
	if len(removed) == 0 {
		fmt.Fprintln(w, "Nothing was left.")
	}
}

// readScenarios reads the named scenarios.
func readScenarios(names []string, o scenario.Options) (list []*scenario.Scenario, err error) {
	for _, name := range names {
		s, err := scenario.Load(name, o)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// quoted quotes an argument for a shell.
func quoted(arg string) string {
	if arg != "" && !strings.ContainsAny(arg, " \t\n'\"\\$&|;<>()*?[]{}~#!`") {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}
