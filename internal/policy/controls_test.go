package policy

import (
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/learn"
)

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
