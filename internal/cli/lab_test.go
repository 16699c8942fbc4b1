package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/console"
)

// All arguments after lab or demo, flags included, are passed to tcpilot-lab.
func TestArgumentsArePassedToTheLab(t *testing.T) {
	for line, want := range map[string][]string{
		"lab":                             nil,
		"lab --help":                      {"--help"},
		"lab run loss --quick --case 5%":  {"run", "loss", "--quick", "--case", "5%"},
		"lab run --json -o x -- --socket": {"run", "--json", "-o", "x", "--", "--socket"},
		"demo":                            {"demo"},
		"demo --help":                     {"demo", "--help"},
	} {
		w := newWorld(t)
		var got []string
		w.env.ExecLab = func(args []string) error { got = args; return nil }
		if code := Main(t.Context(), w.env, strings.Fields(line)); code != console.ExitOK || !slices.Equal(got, want) {
			t.Errorf("%s: exit %d, handed over %q, want %q", line, code, got, want)
		}
	}
}

func TestLabIsMissing(t *testing.T) {
	w := newWorld(t)
	w.env.ExecLab = func([]string) error { return errors.New("find tcpilot-lab: it is not in PATH") }
	if r := w.run(t.Context(), "demo"); r.code != console.ExitError || !strings.Contains(r.stderr, "not in PATH") {
		t.Errorf("%+v", r)
	}
}

// Completions are those of tcpilot-lab.
func TestLabCompletes(t *testing.T) {
	w := newWorld(t)
	var asked []string
	w.env.LabOutput = func(_ context.Context, args []string) ([]byte, error) {
		asked = args
		return []byte("loss\nlossy\n:4\n"), nil
	}
	if r := w.runPlain(t.Context(), "__complete", "lab", "run", "--quick", "lo"); r.code != 0 || r.stdout != "loss\nlossy\n:4\n" {
		t.Errorf("%+v", r)
	}
	if want := []string{"__complete", "run", "--quick", "lo"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	for _, answer := range []string{"", "nonsense", "loss\n"} {
		w.env.LabOutput = func(context.Context, []string) ([]byte, error) { return []byte(answer), nil }
		if r := w.runPlain(t.Context(), "__complete", "lab", ""); r.code != 0 || strings.Contains(r.stdout, "loss") {
			t.Errorf("%q: %+v", answer, r)
		}
	}
}
