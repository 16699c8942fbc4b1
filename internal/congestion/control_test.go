package congestion

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// The catalogue and bpf/cc contain the same controls.
func TestCatalogueIsThatOfTheSource(t *testing.T) {
	files, err := filepath.Glob("../../bpf/cc/*.bpf.c")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var want, have []string
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".bpf.c")
		want = append(want, Prefix+name)
	}
	for _, c := range Own() {
		have = append(have, c.CC.String())
		if got := Of(c.CC); got != c || !IsOwn(c.CC) {
			t.Errorf("%s is found as %+v", c.CC, got)
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
	for _, name := range []string{"cubic", "tcpilot_trial"} {
		if IsOwn(tcp.CCOf(name)) {
			t.Errorf("%s is one of ours", name)
		}
	}
	if HasOwnName(tcp.CCOf("tcpilot")) || !HasOwnName(tcp.CCOf("tcpilot_trial")) {
		t.Error("ours are told by their prefix")
	}
}

func TestIsLinux(t *testing.T) {
	for name, want := range map[string][2]bool{
		"cubic": {true, true}, "vegas": {true, true}, "bbr3": {false, true}, "prague": {false, true},
		"tcpilot_bbr3": {}, "mine": {},
	} {
		if cc := tcp.CCOf(name); InLinux(cc) != want[0] || IsLinux(cc) != want[1] {
			t.Errorf("%s: in Linux %v, or patched into it %v; want %v", name, InLinux(cc), IsLinux(cc), want)
		}
	}
}

func TestOf(t *testing.T) {
	for name, want := range map[string]Control{
		"cubic":          {},
		"bbr":            {IgnoresECN: true, LossTolerant: true},
		"dctcp":          {NeedsECN: true},
		"tcpilot_bbr3":   {LossTolerant: true},
		"tcpilot_dctcp":  {NeedsECN: true},
		"tcpilot_ledbat": {ByName: true},
		"tcpilot_prague": {NeedsECN: true, ByName: true},
		"mine":           {},
	} {
		got := Of(tcp.CCOf(name))
		if got.CC.String() != name || got.NeedsECN != want.NeedsECN || got.IgnoresECN != want.IgnoresECN ||
			got.ByName != want.ByName || got.LossTolerant != want.LossTolerant {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// If there are more arms than a policy holds, the preferred ones are kept.
func TestOrderOfPreference(t *testing.T) {
	list := []Control{Of(tcp.CCOf("vegas")), Of(tcp.CCOf("tcpilot_ledbat")), Of(tcp.CCOf("reno")), Of(tcp.CCOf("bbr3")), Of(tcp.CCOf("bbr")), Of(tcp.CCOf("cubic"))}
	slices.SortFunc(list, Compare)
	var names []string
	for _, c := range list {
		names = append(names, c.CC.String())
	}
	if got := strings.Join(names, " "); got != "cubic bbr reno bbr3 tcpilot_ledbat vegas" {
		t.Error(got)
	}
}
