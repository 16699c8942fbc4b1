package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func cc(name string) tcp.CC {
	c, _ := tcp.ParseCC(name)
	return c
}

// The controls that are loaded, by configuration.
func TestControlsToLoad(t *testing.T) {
	var auto []string // of the catalogue
	for _, c := range congestion.Own() {
		if !c.ByName {
			auto = append(auto, c.CC.String())
		}
	}
	all := strings.Join(auto, " ")
	withLedbat := append(auto, "tcpilot_ledbat")
	slices.Sort(withLedbat)
	const rules = "rules: [{name: a, match: {remote_port: 1}, set: {cc: tcpilot_ledbat}}, {name: b, learn: {arms: [bbr, tcpilot_cubic]}}]\n"
	for file, want := range map[string]string{
		"":                                      all,
		"congestion_controls: auto\n":           all,
		rules:                                   strings.Join(withLedbat, " "),
		"congestion_controls: none\n":           "",
		"congestion_controls: tcpilot_prague\n": "tcpilot_prague",
		"congestion_controls: [tcpilot_bbr3]\n": "tcpilot_bbr3",
		"congestion_controls: none\nrules: [{name: a, learn: {arms: [cubic, mine]}}]\n": "",
	} {
		got := parse(t, file).CongestionControls
		var names []string
		for _, c := range got {
			names = append(names, c.String())
		}
		if strings.Join(names, " ") != want || got == nil {
			t.Errorf("%q loads %q, want %q", file, names, want)
		}
	}
	if !slices.Equal(Default().CongestionControls, parse(t, "{}").CongestionControls) {
		t.Error("the default differs from an empty file's")
	}
}
