package cli

import (
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
)

func (a *app) doctor() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show what this kernel allows, found by trying it",
		Long: `Show what tcpilot can do on this kernel: its features, every option at every
hook with the kernel's answer, the congestion controls, what this host and its
network cards are ready for, and other sock_ops programs on tcpilot's cgroup or
above it. A field is usable if the kernel accepts it at one hook or more: a
field that it does not accept before a connection is established is set
afterwards. Everything is found by trying it, never from the kernel's version.
If no daemon runs, this command does the tests, and needs root. The exit status
is 1 if something prevents tcpilot from working here, for example a cgroup
hierarchy that is only that of a container.`,
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
		return rootError{fmt.Errorf("examine kernel (no daemon runs): %w", err)}
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
	a.renderRemoval(w, d.Removal)
	a.renderYields(w, a.Now(), d.Yields)
	var others, left []api.Conflict
	for _, c := range d.Conflicts {
		if c.Kind == "leftover" {
			left = append(left, c)
		} else {
			others = append(others, c)
		}
	}
	a.Heading(w, "Conflicts")
	a.renderConflicts(w, others)
	if len(left) > 0 {
		a.Heading(w, "Of another tcpilot")
		a.renderConflicts(w, left)
	}
}

func (a *app) renderConflicts(w io.Writer, list []api.Conflict) {
	if len(list) == 0 {
		fmt.Fprintln(w, "  none")
	}
	for _, c := range list {
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

// renderRemoval writes that the removal of the CNI plugin waits; nothing if r is nil.
func (a *app) renderRemoval(w io.Writer, r *api.PluginRemoval) {
	if r == nil {
		return
	}
	a.Heading(w, "CNI plugin")
	text, advice := removalState(r)
	fmt.Fprintf(w, "  %s %s\n      %s\n", a.Paint.Warn("removal:"), text, advice)
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
