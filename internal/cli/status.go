package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/metrics"
)

func (a *app) status() *cobra.Command {
	check := false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the daemon does, and what it cannot do here",
		Long: `Show what the daemon does: what it is attached to, which features are active and
why others are not, how many connections it treated and for which reason, the
congestion controls that it may choose, the settings that it yielded to the
administrator, the counts of the events that rules watch, and the cost of its
programs.

The first line is ok, or degraded and why: the latest configuration was refused, a
wanted feature does not work on this kernel, or a problem prevents tcpilot from
working. With --check, only that line is shown (with --json, the whole document);
the exit status is 1 if it is not ok.`,
		Example: "  tcpilot status\n  tcpilot status --check || tcpilot doctor\n  tcpilot status --json | jq .counters.samples",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check {
				return a.checkStatus(cmd.Context())
			}
			return show(cmd.Context(), a, api.ResourceStatus, a.renderStatus)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "only say whether it is ok, also by the exit status")
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

// checkStatus writes the verdict, and returns an error if it is not ok.
func (a *app) checkStatus(ctx context.Context) error {
	s, err := a.client().Status(ctx)
	if err != nil {
		return err
	}
	err = console.EmitValue(a.Output, s, func(w io.Writer, s api.Status) { fmt.Fprintln(w, a.verdict(s)) })
	if err != nil || len(s.Degraded) == 0 {
		return err
	}
	return console.Silent{Err: errors.New("degraded")}
}

func (a *app) verdict(s api.Status) string {
	if len(s.Degraded) == 0 {
		return "ok"
	}
	return a.Paint.Bad("degraded: " + strings.Join(s.Degraded, "; "))
}

func (a *app) renderStatus(w io.Writer, s api.Status) {
	fmt.Fprintln(w, a.verdict(s))
	now := s.Started.Add(s.Uptime)
	fmt.Fprintf(w, "tcpilot %s has run for %s (pid %d) on kernel %s\n\n", s.Version, console.Span(s.Uptime), s.PID, s.Kernel)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	config := s.Config
	if config == "" {
		config = "built-in defaults"
	}
	line("config", "%s, read %s", config, fmtAgo(now, s.ConfigLoaded))
	if s.ConfigError != "" {
		line("", "%s", a.Paint.Bad("last reload refused: "+s.ConfigError))
	}
	if len(s.NeedRestart) > 0 {
		line("", "%s", a.Paint.Warn("changed, needs a restart: "+strings.Join(s.NeedRestart, ", ")))
	}
	mode := s.Mode
	if mode == engine.ModeObserve {
		mode = a.Paint.Warn(strings.TrimPrefix(observeLine, "mode "))
	}
	line("mode", "%s", mode)
	adopted := ""
	if s.Adopted {
		adopted = ", adopted from an earlier daemon"
	}
	for _, p := range s.Problems {
		line("problem", "%s", a.Paint.Bad(p))
	}
	line("attached", "%s, %s%s", s.Cgroup, fmtAgo(now, s.Attached), adopted)
	line("lease", "%s: how long policies outlive the daemon", fmtDuration(s.Lease))
	line("learner", "%s, %d of at most %s, saved %s", s.Learner, s.Totals.Paths, console.Plural(s.Totals.PathLimit, "path"), fmtAgo(now, s.Totals.LastSaved))
	if s.Metrics != "" {
		line("metrics", "http://%s/metrics", s.Metrics)
	}
	lost := fmt.Sprintf("%d lost", s.Counters.Samples.Lost())
	if s.Counters.Samples.Lost() > 0 {
		lost = a.Paint.Warn(fmt.Sprintf("%s (%d ring full, %d malformed)", lost, s.Counters.Samples.Dropped, s.Counters.Samples.Malformed))
	}
	line("samples", "%d received, %d used in beliefs, %s", s.Counters.Samples.Received, s.Totals.ObserveCount, lost)
	line("policies", "%d written in %d rounds of %s, %s", s.Totals.Writes, s.Totals.Ticks,
		fmtDuration(perTick(s.Totals)), a.errorCount(s.Totals.WriteErrors))

	a.renderPodStatus(line, s.Pods)
	a.renderRollouts(w, now, s.Rollouts)
	a.renderYields(w, now, s.Yields)
	a.renderLimits(w, s.Counters.Limits)
	a.renderBuffers(w, now, s.Buffers)
	a.renderHostSysctls(w, now, s.HostSysctls)
	a.renderHostRoutes(w, s.HostRoutes)
	a.renderFeatures(w, s.Features)
	a.renderCounters(w, s.Counters, s.Totals)
	a.renderArms(w, &s.Arms)
	a.renderPrograms(w, s.Counters.Programs)
	if len(s.Loaded) > 0 {
		a.Heading(w, "Users' programs")
		a.renderLoaded(w, s.Loaded, "  ")
	}
}

func perTick(t engine.Totals) time.Duration {
	if t.Ticks == 0 {
		return 0
	}
	return t.TickTime / time.Duration(t.Ticks)
}

func (a *app) errorCount(n uint64) string {
	if n == 0 {
		return "no errors"
	}
	return a.Paint.Bad(fmt.Sprintf("%d errors", n))
}

func (a *app) renderYields(w io.Writer, now time.Time, yields []engine.Yield) {
	if len(yields) == 0 {
		return
	}
	a.Heading(w, "Yielded to the administrator")
	t := console.NewTable("FIELD", "SYSCTL", "BEFORE", "AFTER", "SINCE")
	for _, y := range yields {
		if y.NetNS != "" {
			y.Sysctl += " in network namespace " + y.NetNS
		}
		t.Row(y.Field, y.Sysctl, y.Before, y.After, fmtAgo(now, y.Since))
	}
	t.Write(w, a.Paint, "  ")
}

func (a *app) renderBuffers(w io.Writer, now time.Time, b *api.Buffers) {
	if b == nil || len(b.Limits) == 0 && b.PausedUntil.IsZero() {
		return
	}
	a.Heading(w, "Raised buffer limits")
	if !b.PausedUntil.IsZero() {
		fmt.Fprintln(w, "  "+a.Paint.Warn("TCP was short of memory: nothing is raised for another "+console.Span(b.PausedUntil.Sub(now))))
	}
	t := console.NewTable("NETNS", "SYSCTL", "MAXIMUM", "BEFORE", "SINCE", "WHY")
	for _, l := range b.Limits {
		t.Row(cmp.Or(l.NetNS, "own"), l.Sysctl, fmtBytes(l.Limit), fmtBytes(l.Original), fmtAgo(now, l.Since), l.Why)
	}
	t.Write(w, a.Paint, "  ")
}

func (a *app) renderHostSysctls(w io.Writer, now time.Time, list []api.HostSysctl) {
	if len(list) == 0 {
		return
	}
	a.Heading(w, "Sysctls of the host profile")
	t := console.NewTable("NETNS", "SYSCTL", "VALUE", "BEFORE", "SINCE")
	for _, s := range list {
		t.Row(cmp.Or(s.NetNS, "own"), s.Sysctl, s.Value, s.Original, fmtAgo(now, s.Since))
	}
	t.Write(w, a.Paint, "  ")
}

func (a *app) renderHostRoutes(w io.Writer, list []api.HostRoutes) {
	if len(list) == 0 {
		return
	}
	a.Heading(w, "Routes with timestamps in microseconds")
	t := console.NewTable("NETNS", ">COUNT", "ROUTES")
	for _, h := range list {
		text := strings.Join(h.Routes, ", ")
		if more := h.Count - len(h.Routes); more > 0 {
			text += fmt.Sprintf(", and %d more", more)
		}
		t.Row(cmp.Or(h.NetNS, "own"), fmt.Sprint(h.Count), text)
	}
	t.Write(w, a.Paint, "  ")
	for _, h := range list {
		for _, left := range h.Left {
			fmt.Fprintf(w, "  not changed in %s: %s\n", cmp.Or(h.NetNS, "own"), left)
		}
	}
}

func (a *app) renderLimits(w io.Writer, limits []metrics.LimitCount) {
	if len(limits) == 0 {
		return
	}
	a.Heading(w, "Rate limits")
	t := console.NewTable("RULE", ">TOGETHER", ">MEASURED", ">EACH", ">CONNECTIONS", ">ACTIVE", ">SHARE")
	for _, l := range limits {
		share := fmtRate(float64(l.Share))
		if l.Share == 0 && l.Active > 0 {
			share = "as needed"
		}
		t.Row(l.Rule, fmtRate(float64(l.Total)), fmtRate(l.Measured), fmtRate(float64(l.Connection)), fmt.Sprint(l.Connections), fmt.Sprint(l.Active), share)
	}
	t.Write(w, a.Paint, "  ")
}

func (a *app) renderFeatures(w io.Writer, features []api.Feature) {
	a.Heading(w, "Features")
	t := console.NewTable("FEATURE", "WANTED", "ACTIVE", "WHY NOT")
	for _, f := range features {
		t.Row(f.Name, yesNo(f.Wanted), yesNo(f.Active), f.Why)
	}
	t.Write(w, a.Paint, "  ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a *app) renderCounters(w io.Writer, c metrics.Counters, totals engine.Totals) {
	a.Heading(w, "Connections")
	t := console.NewTable("RULE", ">OUTGOING", ">INCOMING")
	for _, n := range c.Connections {
		t.Row(n.Rule, fmtCount(n.Outgoing), fmtCount(n.Incoming))
	}
	t.Write(w, a.Paint, "  ")
	a.renderConnectionCounts(w, c, totals)
	a.renderEvents(w, c.Events)
}

// renderEvents lists the event counts of the connections that rules watch.
func (a *app) renderEvents(w io.Writer, events []metrics.EventCount) {
	if len(events) == 0 {
		return
	}
	var names, rules []string
	counts := map[[2]string]uint64{}
	for _, e := range events {
		if !slices.Contains(names, e.Event) {
			names = append(names, e.Event)
		}
		if !slices.Contains(rules, e.Rule) {
			rules = append(rules, e.Rule)
		}
		counts[[2]string{e.Rule, e.Event}] += e.Count
	}
	slices.Sort(names)
	heads := []string{"RULE"}
	for _, name := range names {
		heads = append(heads, ">"+strings.ToUpper(name))
	}
	a.Heading(w, "Events of watched connections")
	t := console.NewTable(heads...)
	for _, rule := range rules {
		cells := []string{rule}
		for _, name := range names {
			cells = append(cells, fmtCount(counts[[2]string{rule, name}]))
		}
		t.Row(cells...)
	}
	t.Write(w, a.Paint, "  ")
}

// renderConnectionCounts writes the counts of decisions, samples and refused options.
func (a *app) renderConnectionCounts(w io.Writer, c metrics.Counters, totals engine.Totals) {
	var parts []string
	for _, n := range c.Decisions {
		parts = append(parts, fmt.Sprintf("%s %d", n.Reason, n.Count))
	}
	writeList(w, "decided", parts)
	writeList(w, "sampled", fmtCounts(totals.Samples))
	writeList(w, "ignored", fmtCounts(totals.Ignored))
	parts = nil
	for _, f := range c.SetErrors {
		parts = append(parts, fmt.Sprintf("%s %d", f.Field, f.Count))
	}
	writeList(w, "refused", parts)
	acted := maps.Clone(totals.Retired)
	maps.DeleteFunc(acted, func(_ string, n uint64) bool { return n == 0 })
	writeList(w, "retired on paths", fmtCounts(acted))
}

// fmtCounts writes counts by name, in a stable order.
func fmtCounts(counts map[string]uint64) []string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, counts[k]))
	}
	return parts
}

func writeList(w io.Writer, name string, parts []string) {
	if len(parts) > 0 {
		fmt.Fprintf(w, "  %s: %s\n", name, wrap(parts, 78, strings.Repeat(" ", len(name)+4)))
	}
}

func (a *app) renderArms(w io.Writer, arms *engine.Arms) {
	a.Heading(w, "Congestion controls")
	t := console.NewTable("NAME", "STATE", ">REFUSED", "WHY")
	for _, cc := range arms.All() {
		state, why := arms.State(cc)
		t.Row(cc.String(), state, fmtCount(arms.Failures[cc]), why)
	}
	t.Write(w, a.Paint, "  ")
}

func (a *app) renderPrograms(w io.Writer, programs []metrics.ProgramStats) {
	a.Heading(w, "Programs")
	t := console.NewTable("PROGRAM", ">ID", ">RUNS", ">TIME", ">PER RUN")
	counted := true
	for _, p := range programs {
		if !p.Stats {
			counted = false
			t.Row(p.Name, fmtCount(uint64(p.ID)), console.None, console.None, console.None)
			continue
		}
		each := console.None
		if p.RunCount > 0 {
			each = fmtDuration(p.RunTime / time.Duration(p.RunCount))
		}
		t.Row(p.Name, fmtCount(uint64(p.ID)), fmtCount(p.RunCount), fmtDuration(p.RunTime), each)
	}
	t.Write(w, a.Paint, "  ")
	if !counted {
		fmt.Fprintln(w, "  (the kernel counts runs after: sysctl kernel.bpf_stats_enabled=1; that costs about 50 ns a run)")
	}
}
