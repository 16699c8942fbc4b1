package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
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
		Long:    "Show the rules in force. The first rule that a connection matches applies to it; a\nconnection that matches none is left alone.",
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

// byObjective is the reason of values that a rule has by its objective.
const byObjective = "objective"

// action says what a rule does in a few words.
func action(r engine.RuleState) string {
	if r.Action == "leave" {
		return "leave alone"
	}
	var parts []string
	var set, defaults []string
	if r.CC != (tcp.CC{}) {
		set = append(set, "cc="+r.CC.String())
	}
	for _, s := range r.Set {
		value := cmp.Or(s.Configured, fmtValue(s.Value, s.Unit))
		if s.Reason == byObjective {
			defaults = append(defaults, s.Field+"="+value)
		} else {
			set = append(set, s.Field+"="+value)
		}
	}
	if len(set) > 0 {
		parts = append(parts, "set "+strings.Join(set, ", "))
	}
	if len(r.Arms) > 0 {
		var arms []string
		for _, c := range r.Arms {
			arms = append(arms, c.String())
		}
		learn := fmt.Sprintf("learn %s for %s", strings.Join(arms, "/"), r.Objective)
		if len(defaults) > 0 {
			learn += " (" + strings.Join(defaults, ", ") + ")"
		}
		if r.HoldOut > 0 {
			learn += ", hold-out " + fmtConfigured(r.HoldOut)
		}
		if r.SwitchRunning {
			learn += ", running connections as well"
		}
		parts = append(parts, learn)
	}
	if len(r.Adapt) > 0 {
		parts = append(parts, "adapt "+strings.Join(adapted(&r), ", "))
	}
	if l := r.RateLimit; l != nil {
		parts = append(parts, "limit to "+limits(l.Total, l.Connection))
	}
	if o := r.OnRTO; o != nil {
		parts = append(parts, onRTO(o))
	}
	if len(r.Watch) > 0 {
		parts = append(parts, fmt.Sprintf("watch %s of %s", strings.Join(r.Watch, "/"), fmtConfigured(r.WatchShare)))
	}
	if len(parts) == 0 {
		return r.Action
	}
	if r.Rollout != nil && r.Rollout.Share < 1 {
		parts = append(parts, "rolled out to "+fmtConfigured(r.Rollout.Share))
	}
	return strings.Join(parts, "; ")
}

// limits writes a rate limit: "100 Mbit/s together, 20 Mbit/s each".
func limits(total, connection uint64) string {
	var parts []string
	if total != 0 {
		parts = append(parts, fmtRate(float64(total))+" together")
	}
	if connection != 0 {
		parts = append(parts, fmtRate(float64(connection))+" each")
	}
	return strings.Join(parts, ", ")
}

// onRTO writes an answer to timeouts: "cc=bbr after 3 timeouts".
func onRTO(o *engine.OnRTO) string {
	text := fmt.Sprintf("cc=%s after %s", o.CC, console.Plural(o.After, "timeout"))
	if o.Share < 1 {
		text += ", of " + fmtConfigured(o.Share) + " of connections"
	}
	return text
}

// adapted lists the fields that a rule adapts, with the bounds that it sets.
func adapted(r *engine.RuleState) (fields []string) {
	for _, field := range r.Adapt {
		text := field
		if i := slices.IndexFunc(r.AdaptBounds, func(s engine.Setting) bool { return s.Field == field }); i >= 0 {
			b, bound := r.AdaptBounds[i], "at least"
			if b.Unit == tcp.Packets.String() && field != tcp.CwndClamp.String() {
				bound = "at most"
			}
			text += fmt.Sprintf(" (%s %s)", bound, fmtValue(b.Value, b.Unit))
		}
		fields = append(fields, text)
	}
	return fields
}

func (a *app) check() *cobra.Command {
	strict := false
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file without using it",
		Long: `Check a configuration file as 'tcpilot reload' would, without using it: unknown
keys, bad prefixes, values out of range, and rules that can never match. Every
error is written as FILE:LINE:COLUMN: text, and the exit status is 1.

What the file asks for and this host does not have now (a congestion control, a
cgroup, a network namespace) is a warning; with --strict it is an error. Values are
shown as the file has them. A note says what packets bypass if host routing is on
(pods.host_routing).

It needs neither root nor a running daemon.`,
		Example: "  tcpilot check /etc/tcpilot/tcpilot.yaml\n  tcpilot check --strict ./tcpilot.yaml",
		Args:    console.Args(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, argv []string) error {
			checked, err := a.Check(cmd.Context(), argv[0])
			if err != nil {
				return a.checkFailed(err)
			}
			if strict && len(checked.Warnings) > 0 {
				var errs []error
				for _, warning := range checked.Warnings {
					errs = append(errs, fmt.Errorf("%s: %s", checked.File, warning))
				}
				return a.checkFailed(errors.Join(errs...))
			}
			return console.EmitValue(a.Output, checked, func(w io.Writer, c Checked) {
				fmt.Fprintf(w, "ok: %s\n", console.Plural(len(c.Rules), "rule"))
				for _, warning := range c.Warnings {
					fmt.Fprintf(w, "%s %s\n", a.Paint.Warn("warning:"), warning)
				}
				for _, note := range c.Bypassed {
					fmt.Fprintf(w, "note: %s\n", note)
				}
				if len(c.Rules) > 0 {
					fmt.Fprintln(w)
					a.renderRules(w, c.Rules, false)
				}
			})
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as errors")
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
		Short: "Show what this kernel allows, found by trying it",
		Long: `Show what tcpilot can do on this kernel: its features, every option at every
hook with the kernel's answer, the congestion controls, what this host and its
network cards are ready for, and whoever else changes what tcpilot changes. A
field is usable if the kernel accepts it at one hook or more: a field that it
does not accept before a connection is established is set afterwards. Everything
is found by trying it, never from the kernel's version. If no daemon runs, this
command does the tests, and needs root. The exit status is 1 if something
prevents tcpilot from working here, for example a cgroup hierarchy that is only
that of a container.`,
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
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE`, if no daemon runs")
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
		fmt.Fprintln(a.Stderr, "(no daemon runs: tested by this command)")
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

// doctorVerdict returns an error, for the exit status, if there are problems.
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
	ccs := d.Arms.All()
	a.Heading(w, fmt.Sprintf("Congestion controls: %d of %d active", len(d.Arms.Active), len(ccs)))
	t := console.NewTable("NAME", "STATE", "WHY")
	for _, cc := range ccs {
		state, why := d.Arms.State(cc)
		t.Row(cc.String(), state, why)
	}
	t.Write(w, a.Paint, "  ")
	a.renderReady(w, d.Ready)
	a.renderPodDevices(w, d.PodDevices)
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

// renderReady writes what the host can do and tcpilot does not do by itself.
func (a *app) renderReady(w io.Writer, list []api.Readiness) {
	if len(list) == 0 {
		return
	}
	a.Heading(w, "Ready for")
	t := console.NewTable("WHAT", "READY", "WHY")
	for _, r := range list {
		t.Row(r.What, yesNo(r.Ready), r.Why)
	}
	t.Write(w, a.Paint, "  ")
}

// renderPodDevices writes the kinds of devices that tcpilot-cni can make for pods.
func (a *app) renderPodDevices(w io.Writer, devices []api.PodDevice) {
	if len(devices) == 0 { // a daemon that is older than these
		return
	}
	a.Heading(w, "Devices for pods (tcpilot-cni as the main plugin)")
	t := console.NewTable("DEVICE", "AVAILABLE", "WHY NOT")
	for _, d := range devices {
		t.Row(d.Device, yesNo(d.Available), d.Why)
	}
	t.Write(w, a.Paint, "  ")
}

// renderOptions writes the options as rows and the hooks as columns. A field is usable if
// the kernel accepts it at one hook or more: if it does not accept it before a connection is
// established, the field is set afterwards. Unusable fields follow, with the kernel's errors.
func (a *app) renderOptions(w io.Writer, options []api.OptionCheck) {
	var hooks []string
	var rows []*optionRow
	find := func(o *api.OptionCheck) *optionRow {
		for _, r := range rows {
			if r.field == o.Field && r.option == o.Option {
				return r
			}
		}
		r := &optionRow{field: o.Field, option: o.Option, at: map[string]*api.OptionCheck{}}
		rows = append(rows, r)
		return r
	}
	for i := range options {
		o := &options[i]
		if !slices.Contains(hooks, o.Hook) {
			hooks = append(hooks, o.Hook)
		}
		r := find(o)
		r.at[o.Hook] = o
		r.usable = r.usable || o.Accepted
	}
	t := console.NewTable(append([]string{"FIELD", "OPTION", "USABLE"}, hooks...)...)
	var useless []string
	fields, usable := 0, 0
	for _, r := range rows {
		cells := []string{r.field, r.option, yesNo(r.usable)}
		for _, h := range hooks {
			if o := r.at[h]; o == nil {
				cells = append(cells, console.None)
			} else {
				cells = append(cells, yesNo(o.Accepted))
			}
		}
		t.Row(cells...)
		if !strings.HasPrefix(r.option, congestionOption) {
			fields++
			if r.usable {
				usable++
			}
		}
		if !r.usable {
			useless = append(useless, fmt.Sprintf("  %s: %s", r.field, r.why(hooks)))
		}
	}
	a.Heading(w, fmt.Sprintf("Fields: %d of %d usable", usable, fields))
	t.Write(w, a.Paint, "  ")
	if len(useless) > 0 {
		fmt.Fprintf(w, "\n%s\n%s\n", a.Paint.Bold("Not usable"), strings.Join(useless, "\n"))
	}
}

// congestionOption is the prefix of a congestion control's option. It is tested like a field.
const congestionOption = "TCP_CONGESTION="

// optionRow is the kernel's answer for one field at each hook.
type optionRow struct {
	field, option string
	usable        bool
	at            map[string]*api.OptionCheck // by hook
}

// why lists the kernel's answers; hooks with equal answers are listed together.
func (r *optionRow) why(hooks []string) string {
	var answers []string
	where := map[string][]string{}
	for _, h := range hooks {
		if o := r.at[h]; o != nil {
			if where[o.Error] == nil {
				answers = append(answers, o.Error)
			}
			where[o.Error] = append(where[o.Error], h)
		}
	}
	for i, text := range answers {
		answers[i] = text + " at " + strings.Join(where[text], ", ")
	}
	return strings.Join(answers, "; ")
}
