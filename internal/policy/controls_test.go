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
		{Name: "on_rto", OnRTO: OnRTO{CC: ccs("htcp")[0], After: 1, Share: 1}},
		{Name: "some", Learn: &Learn{Arms: ccs("cubic bbr tcpilot_ledbat")}},
	})
	if want := ccs("bbr htcp cubic tcpilot_ledbat"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
