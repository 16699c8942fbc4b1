package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tcpilot/tcpilot/internal/engine"
)

// The table fits a terminal, whatever the addresses.
func TestPathsFitTheTerminal(t *testing.T) {
	w := newWorld(t)
	w.env.Width = 100
	p := *w.fake.Snap.Paths[0]
	p.Prefix = "2001:db8:1234:5678:9abc:def0:1234:5678/128"
	w.fake.Snap.Paths = append(w.fake.Snap.Paths, &p)
	r := w.run(t.Context(), "paths")
	r.golden(t, "paths-100")
	table, _, _ := strings.Cut(r.stdout, "* the default")
	for line := range strings.Lines(table) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestVersusDefault(t *testing.T) {
	for _, tt := range []struct {
		g    engine.Gain
		want string
	}{
		{engine.Gain{}, "-"},
		{engine.Gain{Ratio: 3, Treated: 1, HeldOut: 1}, "-"}, // of one sample
		{engine.Gain{Ratio: 1.1, Low: 0.95, High: 1.21, BySlice: true}, "unclear (0.95-1.21)"},
		{engine.Gain{Ratio: 1.1, Low: 0.95, High: 1.21}, "unclear (0.95-1.21)+"},
		{engine.Gain{Ratio: 0.7, Low: 0.5, High: 0.9}, "0.70x (0.50-0.90)+"},
		{engine.Gain{Ratio: 1.42, Low: 1.2, High: 1.7, BySlice: true}, "1.42x (1.20-1.70)"},
	} {
		if got := fmtVersus(tt.g); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.g, got, tt.want)
		}
	}
}

func TestBelief(t *testing.T) {
	arms := []engine.PathArm{{Count: 5, Mean: 16.1, StdDev: 0.02}, {Count: 3, Mean: 16.1 - 0.6931, StdDev: 0.1}, {Mean: 20}}
	best := bestMean(arms)
	for i, want := range []string{"1.00x +-2%", "0.50x +-11%", "-"} {
		if got := fmtBelief(&arms[i], best, "thompson"); got != want {
			t.Errorf("arm %d: got %q, want %q", i, got, want)
		}
	}
	if got := fmtBelief(&arms[0], best, "epsilon-greedy"); got != "-" {
		t.Errorf("of a cost: %q", got)
	}
}
