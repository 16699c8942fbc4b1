package cli

import (
	"bytes"
	"context"
	"encoding/json"
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
	Dir    string // where it may write
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

A run changes nothing outside its own namespaces and cgroups, and removes them at
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
		s := labScenario{Name: name, Title: whole.Title, Needs: whole.Needs, Takes: takes(whole), Quick: takes(quick)}
		for _, c := range whole.Cases {
			if c.Name != "" {
				s.Cases = append(s.Cases, c.Name)
			}
		}
		list = append(list, s)
	}
	return list, nil
}

// takes is about how long a scenario takes.
func takes(s *scenario.Scenario) (d time.Duration) {
	for _, c := range s.Cases {
		d += c.Estimate()
	}
	return d
}

func (a *app) renderScenarios(w io.Writer, list []labScenario) {
	t := newTable("SCENARIO", ">TAKES", ">QUICK", "WHAT")
	for _, s := range list {
		t.row(s.Name, fmtSpan(s.Takes), fmtSpan(s.Quick), s.Title)
	}
	t.write(w, a.paint, "")
}

func (a *app) labShow() *cobra.Command {
	var source bool
	cmd := &cobra.Command{
		Use:   "show SCENARIO",
		Short: "What a scenario does, in words, or its file",
		Long: `Say what a scenario does, where it comes from and what is expected of it. SCENARIO
is a name of 'tcpilot lab list' or a file; a file is checked. With --source the
file itself is written, as a start for one of your own.`,
		Example: `  tcpilot lab show loss
  tcpilot lab show loss --source > mine.yaml`,
		Args:              args(1, 1, "SCENARIO"),
		ValidArgsFunction: completeScenarios,
		RunE: func(_ *cobra.Command, argv []string) error {
			if source {
				text, err := scenario.Source(argv[0])
				if err != nil {
					return err
				}
				return a.print(text)
			}
			s, err := scenario.Load(argv[0], scenario.Options{})
			if err != nil {
				return err
			}
			if a.json {
				doc, err := indented(s)
				if err != nil {
					return err
				}
				return a.print(doc)
			}
			var b bytes.Buffer
			s.Describe(&b)
			return a.print(b.Bytes())
		},
	}
	cmd.Flags().BoolVar(&source, "source", false, "write the scenario's file")
	a.jsonFlag(cmd, "write a JSON document")
	cmd.MarkFlagsMutuallyExclusive("source", "json")
	return cmd
}

func completeScenarios(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return scenario.Names(), cobra.ShellCompDirectiveDefault
}

func (a *app) labClean() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove what killed runs left",
		Long: `Remove the namespaces, processes, cgroups, directories and mounts of runs whose
process is gone. Runs that go on are left alone.`,
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

// indented is a JSON document for people.
func indented(v any) ([]byte, error) {
	doc, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return append(doc, '\n'), nil
}

// quoted is an argument as a shell reads it.
func quoted(arg string) string {
	if arg != "" && !strings.ContainsAny(arg, " \t\n'\"\\$&|;<>()*?[]{}~#!`") {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}
