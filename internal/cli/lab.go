package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/lab/experiment"
	"github.com/tcpilot/tcpilot/internal/lab/report"
	"github.com/tcpilot/tcpilot/internal/lab/scenario"
)

// Lab is what the lab's commands do that needs root.
type Lab struct {
	// Run runs experiments and writes their records to o.Out.
	Run func(ctx context.Context, o experiment.Options, about report.Run) error
	// Calibrate measures the links of scenarios, and tells of each path.
	Calibrate func(ctx context.Context, o experiment.Options, tell func(experiment.Calibration)) error
	// Clean removes what killed runs left, and names it.
	Clean func() (removed []string, err error)
	// VM runs this program with other arguments under another kernel.
	VM func(ctx context.Context, o VMOptions) error
}

// VMOptions say what to run under another kernel.
type VMOptions struct {
	Kernel string
	Args   []string
	Dir    string // where it may write; empty is nowhere
	Limit  time.Duration
	Stdout io.Writer
	Stderr io.Writer
}

func (a *app) lab() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Measure on networks of this machine's own what tcpilot does",
		Long: `Experiments: networks of namespaces on this machine, links that delay, lose and
queue, real traffic, and several subjects that take turns: the kernel's default,
each congestion control, initial windows by route, tcpilot, bpftune where it is
installed, or any command that starts a tuner.

A run stays within namespaces and cgroups of its own, and removes them at
the end, after Ctrl-C too. What a killed run left is removed by the next one, or by
'tcpilot lab clean'.`,
		Example: `  tcpilot lab list
  sudo tcpilot lab run loss --quick
  sudo tcpilot lab run loss delay --out today.jsonl.gz --html today.html
  tcpilot lab compare yesterday.jsonl.gz today.jsonl.gz`,
		Args: args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.labList(), a.labShow(), a.labRun(), a.labCalibrate(), a.labReport(), a.labCompare(), a.labClean())
	for _, sub := range cmd.Commands() {
		completeLabFlags(sub)
	}
	return cmd
}

// labScenario is a line of lab list.
type labScenario struct {
	Name  string        `json:"name"`
	Title string        `json:"title"`
	Cases []string      `json:"cases,omitempty"`
	Needs []string      `json:"needs,omitempty"`
	Takes time.Duration `json:"takes_ns"`
	Quick time.Duration `json:"quick_ns"`
}

func (a *app) labList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "The scenarios that come with tcpilot",
		Long:  `List the scenarios that come with tcpilot, and about how long each takes.`,
		Args:  args(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			list, err := labScenarios()
			if err != nil {
				return err
			}
			return emitValue(a, list, a.renderScenarios)
		},
	}
	a.jsonFlag(cmd, "write a JSON document")
	return cmd
}

func labScenarios() (list []labScenario, err error) {
	for _, name := range scenario.Names() {
		whole, err := scenario.Load(name, scenario.Options{})
		if err != nil {
			return nil, err
		}
		quick, err := scenario.Load(name, scenario.Options{Quick: true})
		if err != nil {
			return nil, err
		}
		s := labScenario{Name: name, Title: whole.Title, Needs: whole.Needs}
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

// takes is about how long a scenario takes here.
func takes(s *scenario.Scenario) (time.Duration, error) {
	return experiment.Options{Scenarios: []*scenario.Scenario{s}}.Estimate()
}

func (a *app) renderScenarios(w io.Writer, list []labScenario) {
	t := newTable("SCENARIO", ">TAKES", ">QUICK", "WHAT")
	for _, s := range list {
		t.row(s.Name, fmtSpan(s.Takes), fmtSpan(s.Quick), s.Title)
	}
	t.write(w, a.paint, "")
}

func (a *app) labClean() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove what killed runs left",
		Long: `Remove the namespaces, processes, cgroups (with the programs that a tuner left
attached to them), directories and mounts of runs whose process is gone. Runs that
go on are left alone.`,
		Args: args(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			removed, err := a.Lab.Clean()
			if removed == nil {
				removed = []string{}
			}
			if perr := emitValue(a, removed, renderRemoved); perr != nil && err == nil {
				err = perr
			}
			return err
		},
	}
	a.jsonFlag(cmd, "write a JSON list")
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

// readScenarios reads those that are named.
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

// quoted is an argument as a shell reads it.
func quoted(arg string) string {
	if arg != "" && !strings.ContainsAny(arg, " \t\n'\"\\$&|;<>()*?[]{}~#!`") {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}
