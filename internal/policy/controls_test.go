package policy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/learn"
)

// Every control in bpf/cc/ is in the table, and the other way round.
func TestControlsAreThoseOfTheSource(t *testing.T) {
	files, err := filepath.Glob("../../bpf/cc/*.bpf.c")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var want, have []string
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".bpf.c")
		want = append(want, Ours+name)
	}
	for _, c := range Controls {
		have = append(have, c.CC.String())
		if got, ok := ControlOf(c.CC); !ok || got != c || !IsOurs(c.CC) {
			t.Errorf("%s is found as %+v, %v", c.CC, got, ok)
		}
	}
	page, err := os.ReadFile("../../docs/congestion-controls.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range have {
		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("the page on congestion controls has no row for %s", name)
		}
	}
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("table %v, source %v", have, want)
	}
	for _, cc := range ccs("cubic tcpilot_trial") {
		if _, ok := ControlOf(cc); ok {
			t.Errorf("%s is one of ours", cc)
		}
	}
	if IsOurs(ccs("tcpilot")[0]) || !IsOurs(ccs("tcpilot_trial")[0]) {
		t.Error("ours are told by their prefix")
	}
}

func TestWanted(t *testing.T) {
	got := Wanted([]Rule{
		{Name: "leave", Leave: true},
		{Name: "fixed", CC: ccs("bbr")[0]},
		{Name: "auto", Learn: &Learn{Objective: learn.Latency}},
		{Name: "some", Learn: &Learn{Arms: ccs("cubic bbr tcpilot_ledbat")}},
	})
	if want := ccs("bbr cubic tcpilot_ledbat"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
