package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
)

const pathsLong = `Show what was learned: for every path (a rule and a remote prefix) one line per
congestion control, and one for the hold-out, which has the kernel's defaults. "*"
marks the congestion control that is the default.

  SHARE        share of the path's next connections; in mode observe WOULD GET, the
               share that they would get
  CONNECTIONS  number of scored connections
  GOODPUT      typical goodput of the latest ones, if the rule learns for throughput
  RETRANS      their share of retransmits in the data packets
  RTT          their typical round-trip time
  VS-DEFAULT   by what factor the path's connections are faster than the hold-out,
               with its 95 % interval; "unclear" if the interval includes 1, "-" if
               there are too few connections. "+" marks a comparison with single
               connections of the hold-out instead of slices of time, because there
               are too few slices: if connections overlap, it may be wrong

If the hosts of a prefix are learned separately, each host has its own lines, with
its goodput and round-trip time.

With --wide also:

  NETNS    network namespace, for rules that learn for each namespace
  GREEDY   connections that got it while it was the best known
  EXPLORE  connections that got it to learn more
  MIN RTT  least recent round-trip time
  MAX RATE greatest recent delivery rate
  VS-BEST  believed reward, as a factor of that of the path's best one (+- its
           standard deviation); not with the epsilon-greedy learner

With --network, one line per path instead: what its connections show of the network,
with any congestion control.

  TYPE          type of network: datacentre, lan, wifi, cellular, long-fat,
                satellite, policed, bufferbloated or unknown; explain says why
  MIN RTT       least round-trip time of the last 10 minutes before MEASURED
  RTT           smoothed round-trip time
  SSTHRESH      greatest slow start threshold of the last 30 seconds, packets; of
                connections without one that lost packets, their bandwidth-delay
                product
  CARRIED       most packets that connections had in flight together without a loss
  LOSS          share of the recent data packets that were lost
  RATE          greatest delivery rate of the last 2 minutes
  RECEIVE RATE  greatest rate at which a connection received
  RATE LIMIT    of a policer, if one was found: the greatest rate of payload at
                which paced connections together lost nothing
  ACTIVE        established connections now, "-" if they are not counted
  MEASURED      age of the latest sample

With PREFIX, only the paths inside it and the paths that contain it are shown. Paths
with most samples come first. If not all are shown, the last line has their number.`

func (a *app) paths() *cobra.Command {
	var (
		q        api.PathQuery
		order    string
		watch    bool
		wide     bool
		network  bool
		interval time.Duration
	)
	cmd := &cobra.Command{
		Use:   "paths [PREFIX]",
		Short: "Show what was learned per path and congestion control",
		Long:  pathsLong,
		Example: `  tcpilot paths
  tcpilot paths 192.0.2.0/24 --watch
  tcpilot paths --sort gain --limit 10 --rule web`,
		Args: console.Args(0, 1, "PREFIX"),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if len(argv) == 1 {
				var err error
				if q.Prefix, err = prefixArg(argv[0]); err != nil {
					return err
				}
			}
			q.Sort = api.PathSort(order)
			if !slices.Contains(api.PathSorts, q.Sort) {
				return console.Usagef("--sort %q: want %s", order, sortOrders())
			}
			if q.Limit < 0 {
				return console.Usagef("--limit %d: want 0 for all, or more", q.Limit)
			}
			render := a.renderPaths(wide)
			if network {
				render = a.renderNetworks
			}
			if cmd.Flags().Changed("interval") && !watch {
				return console.Usagef("--interval is of --watch: use both")
			}
			if !watch {
				return show(cmd.Context(), a, q.Resource(), render)
			}
			return a.watch(cmd.Context(), interval, q.Resource(), render)
		},
	}
	f := cmd.Flags()
	f.StringVar(&order, "sort", string(api.SortSamples), "`ORDER`: "+sortOrders())
	f.IntVarP(&q.Limit, "limit", "n", 20, "show at most `N` paths; 0 is all")
	f.StringVar(&q.After, "after", "", "only the paths after `CURSOR`: the field next of an earlier --json answer")
	f.StringVar(&q.Rule, "rule", "", "only paths of this `RULE`")
	f.BoolVarP(&watch, "watch", "w", false, "show again every --interval")
	f.DurationVar(&interval, "interval", 2*time.Second, "`TIME` between two updates of --watch")
	f.BoolVar(&wide, "wide", false, wideDoc)
	f.BoolVar(&network, "network", false, networkDoc)
	a.JSONFlag(cmd, jsonDoc)
	console.Exclusive(cmd, "wide", "network")
	console.Exclusive(cmd, "watch", "json")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(sortCompletions(), cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("rule", a.completeRules))
	cmd.ValidArgsFunction = a.completePrefixes
	return cmd
}

const (
	wideDoc    = "all columns"
	networkDoc = "what the paths' connections show of the network"
)

func sortCompletions() []string {
	var orders []string
	for _, s := range api.PathSorts {
		orders = append(orders, string(s))
	}
	return orders
}

func sortOrders() string { return strings.Join(sortCompletions(), ", ") }

func prefixArg(s string) (netip.Prefix, error) {
	p, err := api.ParsePrefix(s)
	if err != nil {
		return p, console.Usagef("%q is not an IP address or prefix", s)
	}
	return p, nil
}

// watch shows the paths again and again until the user interrupts it.
func (a *app) watch(ctx context.Context, interval time.Duration, r api.Resource, render func(io.Writer, api.PathList)) error {
	if interval < 100*time.Millisecond {
		return console.Usagef("--interval %s: want at least 100ms", interval)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := show(ctx, a, r, func(w io.Writer, l api.PathList) {
			if a.Terminal {
				fmt.Fprint(w, "\x1b[H\x1b[J") // cursor home, erase below
			}
			fmt.Fprintln(w, fmtTime(l.At))
			render(w, l)
			if !a.Terminal {
				fmt.Fprintln(w)
			}
		}); err != nil {
			if console.Interrupted(ctx, err) {
				return nil
			}
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// renderPaths returns a function that writes a list of paths: the main columns or, if wide
// is set, all columns.
func (a *app) renderPaths(wide bool) func(io.Writer, api.PathList) {
	return func(w io.Writer, l api.PathList) {
		if noPaths(w, &l) {
			return
		}
		if l.Mode == engine.ModeObserve {
			fmt.Fprintf(w, "%s\n\n", a.Paint.Warn(observeLine+"; WOULD GET is what would be given"))
		}
		t := pathTable(&l, wide)
		if !wide {
			t.Fit(a.Width)
		}
		t.Write(w, a.Paint, "")
		a.renderPathNotes(w, &l)
	}
}

// noPaths reports whether a list is empty, and then writes why.
func noPaths(w io.Writer, l *api.PathList) bool {
	if len(l.Paths) > 0 {
		return false
	}
	fmt.Fprintln(w, "no such path yet: a path appears when the first connection of a rule that learns has ended")
	return true
}

// pathTable has a line for every arm of a path, and one for its hold-out.
func pathTable(l *api.PathList, wide bool) *console.Table {
	share := ">SHARE"
	if l.Mode == engine.ModeObserve {
		share = ">WOULD GET"
	}
	heads := []string{"PREFIX", "CC", share, ">CONNECTIONS", ">GOODPUT", ">RETRANS", ">RTT", "VS-DEFAULT"}
	if wide {
		heads = []string{"PREFIX", "RULE", "NETNS", "CC", share, ">CONNECTIONS", ">GREEDY", ">EXPLORE", ">GOODPUT", ">RETRANS", ">RTT",
			">MIN RTT", ">MAX RATE", ">VS-BEST", "VS-DEFAULT"}
	}
	t := console.NewTable(heads...)
	for _, p := range l.Paths {
		prefix, versus := fmtPrefix(p.Prefix), fmtVersus(p.HoldOut.Gain)
		rule, netns := p.Rule, console.None
		if p.Scope != 0 {
			netns = fmtCount(p.Scope)
		}
		best := bestMean(p.Arms)
		for _, arm := range byWeight(p.Arms) {
			name := arm.CC.String()
			if arm.Default {
				name += "*"
			}
			if wide {
				t.Row(prefix, rule, netns, name, fmtShare(arm.Weight), fmtCount(arm.Count), fmtCount(arm.Greedy),
					fmtCount(arm.Count-min(arm.Count, arm.Greedy)), fmtRate(float64(arm.Goodput)), fmtRetrans(&arm.Recent), fmtMicros(arm.SRTT),
					fmtMicros(arm.MinRTT), fmtRate(float64(arm.Rate)), fmtBelief(&arm, best, l.Learner), versus)
			} else {
				t.Row(prefix, name, fmtShare(arm.Weight), fmtCount(arm.Count), fmtRate(float64(arm.Goodput)), fmtRetrans(&arm.Recent), fmtMicros(arm.SRTT), versus)
			}
			prefix, rule, netns, versus = "", "", "", ""
		}
		h := &p.HoldOut
		if wide {
			t.Row(prefix, rule, netns, heldOut, fmtShare(h.Share), fmtCount(h.Count), "", "", fmtRate(float64(h.Goodput)), fmtRetrans(&h.Recent),
				fmtMicros(h.SRTT), "", "", "", versus)
		} else {
			t.Row(prefix, heldOut, fmtShare(h.Share), fmtCount(h.Count), fmtRate(float64(h.Goodput)), fmtRetrans(&h.Recent), fmtMicros(h.SRTT), versus)
		}
	}
	return t
}

const heldOut = "(hold-out)"

// renderPathNotes writes what does not fit into the table of paths.
func (a *app) renderPathNotes(w io.Writer, l *api.PathList) {
	isDefault := func(arm engine.PathArm) bool { return arm.Default }
	if slices.ContainsFunc(l.Paths, func(p *engine.PathState) bool { return slices.ContainsFunc(p.Arms, isDefault) }) {
		fmt.Fprintln(w, "* the default, which connections have without tcpilot")
	}
	if slices.ContainsFunc(l.Paths, func(p *engine.PathState) bool { return p.HoldOut.Gain.BySingles() }) {
		fmt.Fprintln(w, bySingles+" compared with single connections of the hold-out, not with slices of time: if connections overlap, it may be wrong")
	}
	for _, p := range l.Paths {
		for _, arm := range byWeight(p.Arms) {
			if arm.Retired != nil {
				fmt.Fprintln(w, a.retiredLine(p, &arm, l.At))
			}
		}
		if b := p.LeftToDefault; b != nil {
			fmt.Fprintf(w, "%s is left to kernel defaults for %s: %s\n", p.Prefix, console.Span(b.Until.Sub(l.At)), b.Why)
		}
	}
	for _, r := range l.Rollouts {
		if slices.ContainsFunc(l.Paths, func(p *engine.PathState) bool { return p.Rule == r.Rule }) {
			fmt.Fprintf(w, "rollout: rule %s %s\n", r.Rule, fmtRollout(&r.Rollout, l.At))
		}
	}
	a.renderPathCount(w, l)
}

// renderPathCount says how many paths there are, if not all are shown.
func (a *app) renderPathCount(w io.Writer, l *api.PathList) {
	if len(l.Paths) < l.Total {
		fmt.Fprintf(w, "%d of %d paths: --limit N shows more, 0 all\n", len(l.Paths), l.Total)
	}
}

// fmtPrefix writes a prefix, or the address if it is a host.
func fmtPrefix(prefix string) string {
	if p, err := netip.ParsePrefix(prefix); err == nil && p.IsSingleIP() {
		return p.Addr().String()
	}
	return prefix
}

// bySingles marks a comparison with single connections of the hold-out.
const bySingles = "+"

// fmtVersus is a shorter fmtGain.
func fmtVersus(g engine.Gain) string {
	if !g.Known() {
		return console.None
	}
	interval := "(" + three(g.Low) + "-" + three(g.High) + ")"
	if g.BySingles() {
		interval += bySingles
	}
	if !g.Better() && !g.Worse() {
		return "unclear " + interval
	}
	return fmt.Sprintf("%.2fx %s", g.Ratio, interval)
}

// fmtRetrans writes which share of the data packets were retransmits.
func fmtRetrans(r *engine.Recent) string { return fmtOfPackets(r.Retrans, r.DataSegs) }

// fmtOfPackets writes a share of a number of packets, with two decimals because it is small.
func fmtOfPackets(share float64, packets uint64) string {
	if packets == 0 {
		return console.None
	}
	return strconv.FormatFloat(100*share, 'f', 2, 64) + "%"
}

// bestMean is the greatest believed reward of any arm.
func bestMean(arms []engine.PathArm) float64 {
	best := math.Inf(-1)
	for i := range arms {
		if arms[i].Count > 0 {
			best = max(best, arms[i].Mean)
		}
	}
	return best
}

// fmtBelief writes an arm's believed reward, a natural logarithm, as a factor of the best one.
func fmtBelief(arm *engine.PathArm, best float64, learner string) string {
	if arm.Count == 0 || learner == "epsilon-greedy" { // epsilon-greedy's is not a logarithm
		return console.None
	}
	text := fmt.Sprintf("%.2fx", math.Exp(arm.Mean-best))
	if arm.StdDev > 0 {
		text += fmt.Sprintf(" +-%.0f%%", 100*math.Expm1(arm.StdDev))
	}
	return text
}

// retiredLine says why an arm is not used on a path.
func (a *app) retiredLine(p *engine.PathState, arm *engine.PathArm, now time.Time) string {
	r := arm.Retired
	return a.Paint.Warn("retired:") + fmt.Sprintf(" %s on %s for another %s (%s): %s",
		arm.CC, p.Prefix, console.Span(r.Until.Sub(now)), r.Guard, r.Why)
}

// byWeight returns the arms, greatest share first.
func byWeight(arms []engine.PathArm) []engine.PathArm {
	arms = slices.Clone(arms)
	slices.SortStableFunc(arms, func(x, y engine.PathArm) int {
		switch {
		case x.Weight > y.Weight:
			return -1
		case x.Weight < y.Weight:
			return 1
		}
		return 0
	})
	return arms
}

// completionTimeout bounds how long a shell waits for completions.
const completionTimeout = time.Second

func (a *app) completeRules(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	l, err := a.client().Rules(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, r := range l.Rules {
		names = append(names, r.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completePrefixes(cmd *cobra.Command, argv []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(argv) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	l, err := a.client().Paths(ctx, api.PathQuery{Limit: 100})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var prefixes []string
	for _, p := range l.Paths {
		if !slices.Contains(prefixes, p.Prefix) {
			prefixes = append(prefixes, p.Prefix)
		}
	}
	return prefixes, cobra.ShellCompDirectiveNoFileComp
}
