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
		if got := Of(c.CC); got.CC != c.CC || !IsOwn(c.CC) {
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
			t.Errorf("%s is one of tcpilot's own", name)
		}
	}
	if HasOwnName(tcp.CCOf("tcpilot")) || !HasOwnName(tcp.CCOf("tcpilot_trial")) {
		t.Error("the prefix does not decide which names are tcpilot's own")
	}
}

func TestIsLinux(t *testing.T) {
	for name, want := range map[string][2]bool{
		"cubic": {true, true}, "vegas": {true, true}, "yeah": {true, true}, "bbr3": {false, true}, "prague": {false, true},
		"tcpilot_bbr3": {}, "mine": {},
	} {
		if c := Of(tcp.CCOf(name)); c.InLinux != want[0] || IsLinux(c.CC) != want[1] {
			t.Errorf("%s: in Linux %v, or patched into it %v; want %v", name, c.InLinux, IsLinux(c.CC), want)
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

func controls(names string) (list []Control) {
	for _, name := range strings.Fields(names) {
		list = append(list, Of(tcp.CCOf(name)))
	}
	return list
}

func names(list []Control) string {
	var out []string
	for _, c := range list {
		out = append(out, c.CC.String())
	}
	return strings.Join(out, " ")
}

// If there are more arms than a policy holds, the preferred ones are kept.
func TestOrderOfPreference(t *testing.T) {
	list := controls("vegas tcpilot_ledbat reno bbr3 mine bbr tcpilot_dctcp cubic tcpilot_cubic dctcp tcpilot_bbr3")
	slices.SortFunc(list, Compare)
	if got := names(list); got != "cubic bbr tcpilot_bbr3 tcpilot_cubic tcpilot_dctcp dctcp reno bbr3 mine tcpilot_ledbat vegas" {
		t.Error(got)
	}
}

func TestSafer(t *testing.T) {
	list := controls("prague vegas reno dctcp mine bbr tcpilot_bbr3 cubic")
	slices.SortFunc(list, func(a, b Control) int {
		if Safer(&a, &b) {
			return -1
		}
		return 1
	})
	if got := names(list); got != "cubic reno bbr mine tcpilot_bbr3 vegas dctcp prague" {
		t.Error(got)
	}
}

// The preferred controls are at the head of the catalogue, because their order is their rank.
func TestPreferredAreFirst(t *testing.T) {
	for i := range catalogue[1:] {
		if catalogue[i+1].Preferred && !catalogue[i].Preferred {
			t.Errorf("%s is preferred, and follows %s, which is not", catalogue[i+1].CC, catalogue[i].CC)
		}
	}
}

func TestLinux(t *testing.T) {
	if got := names(Linux()); got != "bbr bic cdg cubic dctcp highspeed htcp hybla illinois lp nv reno scalable vegas veno westwood yeah" {
		t.Error(got)
	}
}
