package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func (a *app) rules() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rules",
		Short:   "Show the rules in force, in the order of matching",
		Long:    "Show the rules in force. The first that a connection matches decides what it is\ntreated as; a connection that matches none is left alone.",
		Example: "  tcpilot rules\n  tcpilot rules --json | jq '.rules[].name'",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), a, api.ResourceRules, func(w io.Writer, l api.RuleList) {
				if len(l.Rules) == 0 {
					fmt.Fprintln(w, "no rules: every connection is left alone")
					return
				}
				a.renderRules(w, l.Rules, true)
			})
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

// renderRules writes one line per rule, and one per field that it sets.
func (a *app) renderRules(w io.Writer, rules []engine.RuleState, live bool) {
	heads := []string{">#", "RULE", "MATCH", "ACTION"}
	if live {
		heads = append(heads, ">PATHS", ">SAMPLES")
	}
	t := console.NewTable(heads...)
	for i, r := range rules {
		cells := []string{fmt.Sprint(i + 1), r.Name, r.Match, action(r)}
		if live {
			cells = append(cells, fmt.Sprint(r.Paths), fmtCount(r.Samples))
		}
		t.Row(cells...)
	}
	t.Write(w, a.Paint, "")
}

// action says what a rule does in a few words.
func action(r engine.RuleState) string {
	if r.Action == "leave" {
		return "leave alone"
	}
	var parts []string
	if len(r.Set) > 0 || r.CC != (tcp.CC{}) {
		var set []string
		if r.CC != (tcp.CC{}) {
			set = append(set, "cc="+r.CC.String())
		}
		for _, s := range r.Set {
			set = append(set, s.Field+"="+fmtValue(s.Value, s.Unit))
		}
		parts = append(parts, "set "+strings.Join(set, ", "))
	}
	if len(r.Arms) > 0 {
		var arms []string
		for _, c := range r.Arms {
			arms = append(arms, c.String())
		}
		learn := fmt.Sprintf("learn %s for %s", strings.Join(arms, "/"), r.Objective)
		if r.HoldOut > 0 {
			learn += ", hold-out " + fmtShare(r.HoldOut)
		}
		parts = append(parts, learn)
	}
	if len(parts) == 0 {
		return r.Action
	}
	if r.Rollout != nil && r.Rollout.Share < 1 {
		parts = append(parts, "rolled out to "+fmtShare(r.Rollout.Share))
	}
	return strings.Join(parts, "; ")
}

func (a *app) check() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file without using it",
		Long: `Check a configuration file as 'tcpilot reload' would, without using it: unknown
keys, bad prefixes, values out of range, and rules that can never match. Every
error is written as FILE:LINE:COLUMN: text, and the exit status is 1.
It needs neither root nor a running daemon.`,
		Example: "  tcpilot check /etc/tcpilot/tcpilot.yaml",
		Args:    console.Args(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, argv []string) error {
			checked, err := a.Check(cmd.Context(), argv[0])
			if err != nil {
				return a.checkFailed(err)
			}
			return console.EmitValue(a.Output, checked, func(w io.Writer, c Checked) {
				fmt.Fprintf(w, "ok: %s\n", console.Plural(len(c.Rules), "rule"))
				for _, warning := range c.Warnings {
					fmt.Fprintf(w, "%s %s\n", a.Paint.Warn("warning:"), warning)
				}
				if len(c.Rules) > 0 {
					fmt.Fprintln(w)
					a.renderRules(w, c.Rules, false)
				}
			})
		},
	}
	a.JSONFlag(cmd, "write the rules as JSON")
	return cmd
}

// checkFailed writes every error on a line of its own, as compilers do.
func (a *app) checkFailed(err error) error {
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	for _, e := range errs {
		fmt.Fprintln(a.Stderr, e)
	}
	return console.Silent{Err: err}
}

func (a *app) doctor() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show what this kernel allows, tried out",
		Long: `Show what tcpilot can do on this kernel: its features, every option at every
hook with the kernel's answer, the congestion controls, and whoever else changes
what tcpilot changes. Nothing is read off a version number: everything is tried.
Without a running daemon the trials are made by this command, which needs root.
The exit status is 1 when something keeps tcpilot from its work here, for example a
cgroup hierarchy that is only that of a container.`,
		Example: "  sudo tcpilot doctor",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := a.client().Get(cmd.Context(), api.ResourceDoctor)
			if isNotRunning(err) {
				return a.doctorAlone(cmd.Context(), config)
			}
			if err != nil {
				return err
			}
			return a.emitDoctor(doc)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "configuration `file`, where no daemon runs")
	cobra.CheckErr(cmd.MarkFlagFilename("config", "yaml", "yml"))
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) doctorAlone(ctx context.Context, config string) error {
	d, err := a.Doctor(ctx, RunOptions{Config: config, Socket: a.socket})
	if err != nil {
		return fmt.Errorf("examine kernel (no daemon runs): %w", err)
	}
	if !a.JSON {
		fmt.Fprintln(a.Stderr, "(no daemon runs: tried out by this command)")
	}
	return doctorVerdict(d, console.EmitValue(a.Output, d, a.renderDoctor))
}

func (a *app) emitDoctor(doc []byte) error {
	var d api.Doctor
	if err := json.Unmarshal(doc, &d); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	return doctorVerdict(d, console.Emit(a.Output, doc, a.renderDoctor))
}

// doctorVerdict makes problems, which are shown already, an exit status.
func doctorVerdict(d api.Doctor, err error) error {
	if err == nil && len(d.Problems) > 0 {
		return console.Silent{Err: errors.New(d.Problems[0])}
	}
	return err
}

func (a *app) renderDoctor(w io.Writer, d api.Doctor) {
	fmt.Fprintf(w, "Kernel %s, cgroup %s\n", d.Kernel, d.Cgroup)
	for _, p := range d.Problems {
		fmt.Fprintf(w, "%s\n", a.Paint.Bad("problem: "+p))
	}
	a.renderFeatures(w, d.Features)
	a.renderOptions(w, d.Options)
	a.Heading(w, "Congestion controls")
	t := console.NewTable("NAME", "AVAILABLE", "LOADABLE", "WHY")
	for _, c := range d.CCs {
		t.Row(c.Name, yesNo(c.Available), yesNo(c.Loadable), c.Why)
	}
	t.Write(w, a.Paint, "  ")
	a.renderYields(w, a.Now(), d.Yields)
	a.Heading(w, "Conflicts")
	if len(d.Conflicts) == 0 {
		fmt.Fprintln(w, "  none")
	}
	for _, c := range d.Conflicts {
		fmt.Fprintf(w, "  %s %s\n", a.Paint.Warn(c.Kind+":"), c.What)
		if c.Advice != "" {
			fmt.Fprintf(w, "      %s\n", c.Advice)
		}
	}
}

// renderOptions writes the options as rows and the hooks as columns, and below
// it every refusal in the kernel's words.
func (a *app) renderOptions(w io.Writer, options []api.OptionCheck) {
	type row struct{ field, option string }
	var hooks []string
	var rows []row
	index := map[string]int{}
	seen := map[row]map[string]api.OptionCheck{}
	for _, o := range options {
		if _, ok := index[o.Hook]; !ok {
			index[o.Hook] = len(hooks)
			hooks = append(hooks, o.Hook)
		}
		r := row{o.Field, o.Option}
		if seen[r] == nil {
			seen[r] = map[string]api.OptionCheck{}
			rows = append(rows, r)
		}
		seen[r][o.Hook] = o
	}
	a.Heading(w, "Options")
	t := console.NewTable(append([]string{"FIELD", "OPTION"}, hooks...)...)
	var refused []string
	for _, r := range rows {
		cells := []string{r.field, r.option}
		for _, h := range hooks {
			o, ok := seen[r][h]
			switch {
			case !ok:
				cells = append(cells, console.None)
			case o.Accepted:
				cells = append(cells, "yes")
			default:
				cells = append(cells, "no")
				refused = append(refused, fmt.Sprintf("  %s at %s: %s", r.field, h, o.Error))
			}
		}
		t.Row(cells...)
	}
	t.Write(w, a.Paint, "  ")
	if len(refused) > 0 {
		fmt.Fprintf(w, "\n%s\n%s\n", a.Paint.Bold("Refused"), strings.Join(refused, "\n"))
	}
}
