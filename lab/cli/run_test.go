package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/experiment"
	"github.com/tcpilot/tcpilot/lab/report"
)

// A run without figures fails and says why, and still shows the report.
func TestNoFigures(t *testing.T) {
	round := func(n int, refused string) report.Round {
		return report.Round{Scenario: "loss", Case: "5 %", Subject: "cubic", Repeat: n, Refused: refused,
			Metrics: map[string]float64{"goodput": 1e8}}
	}
	for _, tc := range []struct {
		name   string
		about  report.Case
		rounds []report.Round
		err    error
		code   int
		want   []string
	}{
		{"all is well", report.Case{}, []report.Round{round(1, "")}, nil, console.ExitOK, nil},
		{"one round of two", report.Case{}, []report.Round{round(1, "stolen"), round(1, "")}, nil, console.ExitOK, nil},
		{"every case", report.Case{Refused: "loss is off"}, nil, nil, console.ExitError, []string{"every case was refused", "(loss/5 %)", "loss is off"}},
		{"every round", report.Case{}, []report.Round{round(1, "stolen"), round(1, "stalled")}, nil, console.ExitError,
			[]string{"every round was refused", "with cubic", "stalled"}},
		{"but the warm-up", report.Case{}, []report.Round{round(0, ""), round(1, "stolen")}, nil, console.ExitError, []string{"every round", "stolen"}},
		{"every subject", report.Case{}, []report.Round{round(1, "exit status 7")}, errors.New("run loss: cubic: exit status 7"), console.ExitError,
			[]string{"run loss: cubic: exit status 7", "no figures"}},
		{"no subject", report.Case{}, nil, nil, console.ExitError, []string{"no subject can run here"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.env.Run = func(_ context.Context, o experiment.Options, about report.Run) error {
				c := tc.about
				c.Scenario, c.Case, c.Primary, c.Metrics, c.Baseline = "loss", "5 %", "goodput", []string{"goodput"}, "cubic"
				c.Subjects = []report.Subject{{Name: "cubic", Fixed: "cubic"}}
				err := errors.Join(o.Out.Run(about), o.Out.Case(c))
				for i, r := range tc.rounds {
					r.Order = i
					err = errors.Join(err, o.Out.Round(r, nil))
				}
				return errors.Join(err, o.Out.End(report.End{}), tc.err)
			}
			r := w.run(t.Context(), "run", "loss")
			if r.code != tc.code || !strings.Contains(r.stdout, "5 %") {
				t.Errorf("exit %d, want %d: %+v", r.code, tc.code, r)
			}
			for _, want := range tc.want {
				if !strings.Contains(r.stderr, want) {
					t.Errorf("no %q in %q", want, r.stderr)
				}
			}
			if tc.code == console.ExitOK && strings.Contains(r.stderr, "figures") {
				t.Errorf("unexpected messages: %q", r.stderr)
			}
		})
	}
}
