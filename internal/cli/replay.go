package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/record"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func (a *app) replay() *cobra.Command {
	var (
		o     ReplayOptions
		order string
		limit int
		as    replayTables
	)
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Feed recorded samples to a new engine",
		Long: `Feed the samples of FILE ("-" is the standard input) to a new engine with the
configuration given, and show the paths that it ends with. The recorded times
are the engine's clock, so that the result is the same at every replay. It needs
neither root nor a running daemon.

With --network, it shows what the paths' connections show of the network, as
'tcpilot paths --network' does. With --adapted, it shows the fields that rules adapt
to these paths, with their values at the end, or "kernel's", and what decided that.`,
		Example: `  tcpilot replay samples.tcpi
  tcpilot replay samples.tcpi --adapted --limit 5
  tcpilot replay samples.tcpi --learner epsilon-greedy --config other.yaml`,
		Args: console.Args(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, argv []string) error {
			q := api.PathQuery{Sort: api.PathSort(order), Limit: limit}
			return a.runReplay(cmd.Context(), argv[0], o, q, as)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Config, "config", "", "configuration `FILE`")
	f.StringVar(&o.Learner, "learner", "", "`LEARNER` to use instead of the configuration's: thompson, epsilon-greedy")
	f.StringVar(&order, "sort", string(api.SortSamples), "`ORDER`: "+sortOrders())
	f.IntVarP(&limit, "limit", "n", 20, "show at most `N` paths; 0 is all")
	f.BoolVar(&as.wide, "wide", false, wideDoc)
	f.BoolVar(&as.network, "network", false, networkDoc)
	f.BoolVar(&as.adapted, "adapted", false, "the fields that rules adapt to the paths")
	console.Exclusive(cmd, "wide", "network", "adapted")
	cobra.CheckErr(cmd.MarkFlagFilename("config", "yaml", "yml"))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(sortCompletions(), cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("learner",
		cobra.FixedCompletions([]string{"thompson", "epsilon-greedy"}, cobra.ShellCompDirectiveNoFileComp)))
	a.JSONFlag(cmd, "write the engine's snapshot as JSON")
	return cmd
}

// replayTables says which table of paths a replay shows: by arms if none of the others is asked for.
type replayTables struct{ wide, network, adapted bool }

func (a *app) runReplay(ctx context.Context, name string, o ReplayOptions, q api.PathQuery, as replayTables) error {
	in := a.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("open recording: %w", err)
		}
		defer f.Close()
		in = f
	}
	r, err := record.NewReader(in)
	if err != nil {
		if errors.Is(err, record.ErrForeign) {
			return (&api.Error{Message: fmt.Sprintf("%s: %v", name, err)}).
				WithHint("write one with 'tcpilot record FILE' (without --json)")
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	o.Meta = r.Meta()
	var first, last int64
	o.Samples = func(yield func(*tcp.Sample) bool) {
		for s := range r.All() {
			if first == 0 {
				first = s.At
			}
			last = max(last, s.At)
			if !yield(s) {
				return
			}
		}
	}
	snap, err := a.Replay(ctx, o)
	if err != nil {
		return fmt.Errorf("replay %s: %w", name, err)
	}
	if err := a.printReplay(snap, q, r, time.Duration(last-first), as); err != nil {
		return err
	}
	if err := r.Err(); err != nil {
		return fmt.Errorf("%s is damaged; what is shown is of the %s before: %w", name, console.Plural(int(r.Count()), "sample"), err)
	}
	return nil
}

func (a *app) printReplay(snap *engine.Snapshot, q api.PathQuery, r *record.Reader, span time.Duration, as replayTables) error {
	if a.JSON {
		return console.EmitValue(a.Output, snap, nil)
	}
	var b bytes.Buffer
	m := r.Meta()
	fmt.Fprintf(&b, "%s over %s, recorded %s on kernel %s; learner %s\n", console.Plural(int(r.Count()), "sample"), console.Span(span),
		fmtTime(m.Created), m.Kernel, snap.Learner)
	if ignored := fmtCounts(snap.Totals.Ignored); len(ignored) > 0 {
		fmt.Fprintf(&b, "not scored: %s\n", strings.Join(ignored, ", "))
	}
	fmt.Fprintln(&b)
	list, err := q.Select(snap)
	if err != nil {
		return fmt.Errorf("%v; the rules of a replay are those of --config, or the default one", err)
	}
	render := a.renderPaths(as.wide)
	switch {
	case as.network:
		render = a.renderNetworks
	case as.adapted:
		render = a.renderAdapted
	}
	render(&b, list)
	return a.Print(b.Bytes())
}

// renderAdapted writes the fields that rules adapt to paths, with the reason of each value.
func (a *app) renderAdapted(w io.Writer, l api.PathList) {
	if noPaths(w, &l) {
		return
	}
	t := console.NewTable("PREFIX", "RULE", "FIELD", ">VALUE", "WHY")
	found := false
	for _, p := range l.Paths {
		prefix, rule := fmtPrefix(p.Prefix), p.Rule
		row := func(field, value, why string) {
			t.Row(prefix, rule, field, value, why)
			prefix, rule, found = "", "", true
		}
		for _, s := range p.Set {
			if s.Computed() {
				row(s.Field, fmtValue(s.Value, s.Unit), s.Why)
			}
		}
		for _, k := range p.Kernel {
			row(k.Field, kernelValue, k.Why)
		}
	}
	if found {
		t.Write(w, a.Paint, "")
	} else {
		fmt.Fprintln(w, "the rules of these paths adapt no field")
	}
	a.renderPathCount(w, &l)
}
