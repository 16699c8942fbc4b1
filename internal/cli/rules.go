package cli

import (
	"cmp"
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
		Long:    "Show the rules in force. The first rule that a connection matches applies to it; a\nconnection that matches none is left alone, but for the limit of its pod.",
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
	if r.Objective != "" {
		var arms []string
		for _, c := range r.Arms {
			arms = append(arms, c.String())
		}
		learn := fmt.Sprintf("learn %s for %s", cmp.Or(strings.Join(arms, "/"), "auto"), r.Objective) // auto: known when a daemon runs
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
