package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
)

// observeLine explains mode observe; several commands show it.
const observeLine = "mode observe: nothing is set on any connection"

func (a *app) rollout() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Show and change the share of connections that a rule applies to",
		Long: `Show and change the share of its connections that a rule applies to. The others are
in the hold-out: they keep the kernel's defaults, for comparison. The share is the
key rollout of the rule in the configuration. If connections of the rule do worse
than the hold-out, or fail more often, a guard sets its rollout to 0 %. It stays so,
also across reloads and restarts, until the rule is edited or its rollout is set.`,
		Example: `  tcpilot rollout list
  sudo tcpilot rollout set web 10%`,
	}
	console.Group(cmd)
	cmd.AddCommand(a.rolloutList(), a.rolloutSet())
	return cmd
}

func (a *app) rolloutList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the rules with their rollouts and gains",
		Long: `List the rules that set or learn something for their connections.

  ROLLOUT     share of connections that the rule applies to now
  CONFIGURED  the same share in the configuration
  WITH        recent observations of connections that the rule applied to: slices of
              time, or single connections if the learner does not use slices
  WITHOUT     the same, of the hold-out
  GAIN        by what factor connections of WITH were faster, slow ones counting most,
              with a 95 % interval that is valid at any time: see 'tcpilot paths'. A
              rule that learns nothing is compared while its rollout is below 100 %
  CHANGED BY  guard, operator, or nobody since the configuration was read`,
		Example: "  tcpilot rollout list",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), a, api.ResourceRules, a.renderRolloutList)
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) renderRolloutList(w io.Writer, l api.RuleList) {
	if l.Mode == engine.ModeObserve {
		fmt.Fprintf(w, "%s\n\n", a.Paint.Warn(observeLine+", whatever the rollout"))
	}
	t := console.NewTable("RULE", ">ROLLOUT", ">CONFIGURED", ">WITH", ">WITHOUT", ">GAIN", "CHANGED BY", "WHY")
	for _, r := range l.Rules {
		if r.Rollout == nil {
			continue
		}
		g := r.Gain
		by := console.None
		if r.Rollout.By != "" {
			by = r.Rollout.By + " " + fmtAgo(l.At, r.Rollout.Since)
		}
		t.Row(r.Name, fmtShare(r.Rollout.Share), fmtShare(r.Rollout.Configured), fmtCount(uint64(g.Treated)), fmtCount(uint64(g.HeldOut)), fmtGain(g), by, r.Rollout.Why)
	}
	t.Write(w, a.Paint, "")
}

// fmtRollout writes to how many connections a rule applies, and who changed that.
func fmtRollout(r *engine.Rollout, now time.Time) string {
	text := "applies to " + fmtShare(r.Share) + " of connections"
	if r.By == "" {
		return text
	}
	text += fmt.Sprintf(", set by %s %s; configured %s", r.By, fmtAgo(now, r.Since), fmtShare(r.Configured))
	if r.Why != "" {
		text += ": " + r.Why
	}
	return text
}

func (a *app) rolloutSet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set RULE SHARE",
		Short: "Change the rollout of a rule until the next reload",
		Long: `Change the share of its connections that a rule applies to, 0% to 100%, from now on.
The change lasts until the next reload or restart; for a permanent change, edit the
configuration. Connections that exist already do not change.`,
		Example: "  sudo tcpilot rollout set web 10%",
		Args:    console.Args(2, 2, "RULE or SHARE"),
		ValidArgsFunction: func(cmd *cobra.Command, argv []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(argv) > 0 {
				return []string{"1%", "10%", "50%", "100%"}, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeRules(cmd, argv, word)
		},
		RunE: func(cmd *cobra.Command, argv []string) error { return a.setRollout(cmd.Context(), argv[0], argv[1]) },
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) setRollout(ctx context.Context, rule, share string) error {
	v, err := config.ParseShare(share)
	if err != nil {
		return console.Usagef("%v", err)
	}
	if v > 0 && v < api.MinRollout {
		return console.Usagef("%s: want 0%%, or 0.1%% to 100%%", share)
	}
	r, err := a.client().SetRollout(ctx, api.RolloutRequest{Rule: rule, Share: v})
	if err != nil {
		return err
	}
	return a.done(r, fmt.Sprintf("rule %s applies to %s of new connections, until the next reload (configured: %s)",
		r.Rule, fmtShare(r.Share), fmtShare(r.Configured)))
}

// renderRollouts lists the rollouts in the output of status.
func (a *app) renderRollouts(w io.Writer, now time.Time, list []api.RuleRollout) {
	if len(list) == 0 {
		return
	}
	a.Heading(w, "Rollouts")
	t := console.NewTable("RULE", ">SHARE", ">CONFIGURED", "CHANGED BY", "WHY")
	for _, r := range list {
		by := console.None
		if r.By != "" {
			by = r.By + " " + fmtAgo(now, r.Since)
		}
		t.Row(r.Rule, fmtShare(r.Share), fmtShare(r.Configured), by, r.Why)
	}
	t.Write(w, a.Paint, "  ")
}
