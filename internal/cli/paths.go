package cli

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
)

const pathsLong = `Show what was learned: for every path (a rule and a remote prefix) one line per
congestion control, and one for the connections that were left alone.

  WEIGHT   share of the path's next connections; in mode observe WOULD GET, the
           share that they would get
  COUNT    connections that were scored; of these
  GREEDY   taken while it was the best known, and
  EXPLORE  taken to learn more
  BELIEF   believed reward, a natural logarithm (+- its standard deviation):
           0.1 more is about 10 % better. For throughput it is of the goodput in
           bytes/s; of a prefix with paths of its own, it is relative to the level
           of each. With the epsilon-greedy learner it is the negated cost.
  MIN RTT  least round-trip time seen, RATE greatest delivery rate seen
  GAIN     what the choice is worth: the reward of tuned connections over that of
           the hold-out, as a factor

With PREFIX only the paths within it, and those that it is within, are shown. The
last line says how many there are in all, if they are not all shown: those with
most samples come first.`

func (a *app) paths() *cobra.Command {
	var (
		q        api.PathQuery
		order    string
		watch    bool
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
				return console.Usagef("--sort %q: want %s", order, sortWords())
			}
			if q.Limit < 0 {
				return console.Usagef("--limit %d: want 0 for all, or more", q.Limit)
			}
			if !watch {
				return show(cmd.Context(), a, q.Resource(), a.renderPaths)
			}
			if a.JSON {
				return console.Usagef("--watch and --json do not go together")
			}
			return a.watch(cmd.Context(), interval, q.Resource())
		},
	}
	f := cmd.Flags()
	f.StringVar(&order, "sort", string(api.SortSamples), "`order`: "+sortWords())
	f.IntVarP(&q.Limit, "limit", "n", 20, "show at most `N` paths; 0 is all")
	f.StringVar(&q.After, "after", "", "only those that follow: next `CURSOR` of an earlier --json answer")
	f.StringVar(&q.Rule, "rule", "", "only paths of this `rule`")
	f.BoolVarP(&watch, "watch", "w", false, "show again every --interval")
	f.DurationVar(&interval, "interval", 2*time.Second, "`time` between two looks")
	a.JSONFlag(cmd, jsonDoc)
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(sortCompletions(), cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("rule", a.completeRules))
	cmd.ValidArgsFunction = a.completePrefixes
	return cmd
}

func sortCompletions() []string {
	var words []string
	for _, s := range api.PathSorts {
		words = append(words, string(s))
	}
	return words
}

func sortWords() string { return strings.Join(sortCompletions(), ", ") }

func prefixArg(s string) (netip.Prefix, error) {
	p, err := api.ParsePrefix(s)
	if err != nil {
		return p, console.Usagef("%q is not an IP address or prefix", s)
	}
	return p, nil
}

// watch shows the paths until the user has seen enough.
func (a *app) watch(ctx context.Context, interval time.Duration, r api.Resource) error {
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
			a.renderPaths(w, l)
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

// armName marks the arm that is what connections get without tcpilot.
func armName(a *engine.PathArm) string {
	if a.Default {
		return a.CC.String() + " (default)"
	}
	return a.CC.String()
}

func (a *app) renderPaths(w io.Writer, l api.PathList) {
	if len(l.Paths) == 0 {
		fmt.Fprintln(w, "no such path yet: one appears when the first connection of a rule that learns has ended")
		return
	}
	weight := ">WEIGHT"
	if l.Mode == engine.ModeObserve {
		fmt.Fprintf(w, "%s\n\n", a.Paint.Warn(observeLine+"; WOULD GET is what would be given"))
		weight = ">WOULD GET"
	}
	t := console.NewTable("PREFIX", "RULE", "ARM", weight, ">COUNT", ">GREEDY", ">EXPLORE", ">BELIEF", ">MIN RTT", ">RATE", ">GAIN")
	var retired []string
	for _, p := range l.Paths {
		prefix, rule, gain := p.Prefix, p.Rule, fmtGain(p.HoldOut.Gain)
		if p.Scope != 0 {
			prefix += fmt.Sprintf(" netns %d", p.Scope)
		}
		for _, arm := range byWeight(p.Arms) {
			if arm.Retired != nil {
				retired = append(retired, a.retiredLine(p, &arm, l.At))
			}
			belief := console.None
			if arm.Count > 0 {
				belief = fmt.Sprintf("%.2f", arm.Mean)
				if arm.StdDev > 0 {
					belief += fmt.Sprintf(" +-%.2f", arm.StdDev)
				}
			}
			t.Row(prefix, rule, armName(&arm), fmtShare(arm.Weight), fmtCount(arm.Count), fmtCount(arm.Greedy),
				fmtCount(arm.Count-min(arm.Count, arm.Greedy)), belief, fmtMicros(arm.MinRTT), fmtRate(float64(arm.Rate)), gain)
			prefix, rule, gain = "", "", ""
		}
		t.Row(prefix, rule, "(hold-out)", fmtShare(p.HoldOut.Share), fmtCount(p.HoldOut.Count), "", "", "", "", "", gain)
		if b := p.LeftToDefault; b != nil {
			retired = append(retired, fmt.Sprintf("%s is left to kernel defaults for %s: %s", p.Prefix, console.Span(b.Until.Sub(l.At)), b.Why))
		}
	}
	t.Write(w, a.Paint, "")
	for _, line := range retired {
		fmt.Fprintln(w, line)
	}
	for _, r := range l.Rollouts {
		if slices.ContainsFunc(l.Paths, func(p *engine.PathState) bool { return p.Rule == r.Rule }) {
			fmt.Fprintf(w, "rollout: rule %s: %s of connections%s\n", r.Rule, fmtShare(r.Share), rolloutBy(&r.Rollout, l.At))
		}
	}
	if len(l.Paths) < l.Total {
		fmt.Fprintf(w, "%d of %d paths: --limit N shows more, 0 all\n", len(l.Paths), l.Total)
	}
}

// retiredLine says why an arm has no share of a path.
func (a *app) retiredLine(p *engine.PathState, arm *engine.PathArm, now time.Time) string {
	r := arm.Retired
	return a.Paint.Warn("retired:") + fmt.Sprintf(" %s from %s for another %s (%s): %s",
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

// completionTimeout bounds how long a shell waits for a word.
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
	var words []string
	for _, p := range l.Paths {
		if !slices.Contains(words, p.Prefix) {
			words = append(words, p.Prefix)
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
