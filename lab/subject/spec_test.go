package subject

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/kernelcc"
)

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		want string // part of the error; empty is none
	}{
		{Spec{Name: "kernel", Kind: Default}, ""},
		{Spec{Name: "cubic", Kind: Fixed, CC: "cubic"}, ""},
		{Spec{Name: "IW 40 (route)", Kind: Route, InitCwnd: 40}, ""},
		{Spec{Name: "rwnd", Kind: Route, InitRwnd: 40, CC: "cubic"}, ""},
		{Spec{Name: "tcpilot", Kind: Tcpilot}, ""},
		{Spec{Name: "tcpilot", Kind: Tcpilot, Config: "rules: [{name: a, learn: {}}]"}, ""},
		{Spec{Name: "bpftune", Kind: Bpftune}, ""},
		{Spec{Name: "mine", Kind: Command, Begin: "true", End: "true"}, ""},

		{Spec{Name: "veth", Kind: Pods, Join: "veth"}, ""},
		{Spec{Name: "ptp", Kind: Pods, CC: "bbr", Plugins: []Plugin{{Type: "ptp"}}, Config: "rules: [{name: a, learn: {}}]"}, ""},
		{Spec{Name: "a", Kind: Pods}, "needs either pods"},
		{Spec{Name: "a", Kind: Pods, Join: "veth", Plugins: []Plugin{{Type: "ptp"}}}, "needs either pods"},
		{Spec{Name: "a", Kind: Pods, Join: "magic"}, "it is one of"},
		{Spec{Name: "a", Kind: Pods, Join: "veth", Annotations: map[string]string{"a": "b"}}, "passed to plugins"},
		{Spec{Name: "a", Kind: Pods, Plugins: []Plugin{{Type: "../ptp"}}}, "not a valid name of a plugin"},
		{Spec{Name: "a", Kind: Pods, Plugins: []Plugin{{Type: "ptp", Keys: map[string]json.RawMessage{"ipam": nil}}}}, "sets ipam itself"},
		{Spec{Name: "a", Kind: Pods, Join: "veth", Config: "pods: {dir: /x}"}, "pods.dir may not be set"},
		{Spec{Name: "a", Kind: Fixed, CC: "bbr", Join: "veth"}, "join is for kind pods"},

		{Spec{Kind: Default}, "a name has"},
		{Spec{Name: "a\nb", Kind: Default}, "a name has"},
		{Spec{Name: strings.Repeat("a", 41), Kind: Default}, "a name has"},
		{Spec{Name: "a", Kind: "magic"}, `kind "magic"`},
		{Spec{Name: "a", Kind: Default, CC: "bbr"}, "use kind cc"},
		{Spec{Name: "a", Kind: Fixed}, "needs cc"},
		{Spec{Name: "a", Kind: Fixed, CC: "../x"}, "no name of a congestion control"},
		{Spec{Name: "a", Kind: Route}, "needs initcwnd"},
		{Spec{Name: "a", Kind: Route, InitCwnd: -1}, "1 to 65535"},
		{Spec{Name: "a", Kind: Route, InitRwnd: 1 << 20}, "1 to 65535"},
		{Spec{Name: "a", Kind: Tcpilot, Config: "bpffs: /tmp"}, "bpffs may not be set by a scenario"},
		{Spec{Name: "a", Kind: Tcpilot, Config: "- a"}, "read config"},
		{Spec{Name: "a", Kind: Tcpilot, Config: "rules: ["}, "read config"},
		{Spec{Name: "a", Kind: Command}, "needs begin"},
		{Spec{Name: "a", Kind: Fixed, CC: "bbr", InitCwnd: 4, Config: "x: y", End: "z"}, "initcwnd is for kind route\nconfig is for kind tcpilot\nend is for kind command"},
	} {
		err := c.spec.Check()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.spec, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: %v, want %q", c.spec, err, c.want)
		}
	}
}

func TestString(t *testing.T) {
	own, err := kernelcc.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec Spec
		want string
	}{
		{Spec{Kind: Default}, "default (" + own + ")"},
		{Spec{Kind: Fixed, CC: "cubic"}, "cubic"},
		{Spec{Kind: Route, InitCwnd: 40}, "ip route initcwnd 40"},
		{Spec{Kind: Route, InitCwnd: 40, InitRwnd: 60, CC: "cubic"}, "ip route initcwnd 40 initrwnd 60, beginning with cubic"},
		{Spec{Kind: Tcpilot}, "tcpilot"},
		{Spec{Kind: Tcpilot, Config: "interval: 1s"}, "tcpilot, configured"},
		{Spec{Kind: Bpftune, CC: "bbr"}, "bpftune, beginning with bbr"},
		{Spec{Kind: Command, Begin: "a\nb"}, "`a ...`"},
	} {
		if got := c.spec.String(); got != c.want {
			t.Errorf("%+v is %q, want %q", c.spec, got, c.want)
		}
	}
}

func TestConfigure(t *testing.T) {
	f := files{cgroup: "/cg", bpffs: "/run/x/bpf", dir: "/run/x"}
	const own = "cgroup: /cg\nbpffs: /run/x/bpf\nrun_dir: /run/x\nstate_dir: /run/x/state\nmetrics: {listen: \"\"}\n"
	for text, want := range map[string]string{
		"":                        own,
		"interval: 1s":            "interval: 1s\n" + own,
		"# why\nrules:\n  - {}\n": "# why\nrules:\n  - {}\n" + own,
	} {
		if got := f.configure(text); got != want {
			t.Errorf("configure(%q) =\n%s\nwant\n%s", text, got, want)
		}
	}
}

// A kernel that cannot route packets of pods makes such subjects unavailable.
func TestWhichConfigurationsRoute(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "pods: {big_tcp: on}": false, "pods: {host_routing: off}": false,
		"pods: {host_routing: on}": true, "rules: []\npods:\n  devices: [wire]\n  host_routing: on": true,
	} {
		if configRoutes(text) != want {
			t.Errorf("%q routes: %v", text, !want)
		}
	}
}

// tcpilot that only sets values learns nothing: it needs no warm-up.
func TestConfigLearns(t *testing.T) {
	for text, want := range map[string]bool{
		"":                              true,
		"interval: 1s":                  true,
		"rules: []":                     true,
		"rules: [{name: a, learn: {}}]": true,
		"rules: [{name: a, set: {init_cwnd: 32}}, {name: b, learn: {arms: auto}}]": true,
		"rules: [{name: a, set: {init_cwnd: 32}}]":                                 false,
		"rules: [{name: a, set: {ecn: true}}, {name: b, leave: true}]":             false,
	} {
		s := &subject{spec: Spec{Kind: Tcpilot, Config: text}}
		if s.Learns() != want {
			t.Errorf("%q learns: %v", text, !want)
		}
	}
	for kind, want := range map[Kind]bool{Default: false, Fixed: false, Route: false, Bpftune: true, Command: true} {
		if s := (&subject{spec: Spec{Kind: kind}}); s.Learns() != want {
			t.Errorf("%s learns: %v", kind, !want)
		}
	}
}

func TestTail(t *testing.T) {
	var l tail
	for range 3 * logLimit / 10 {
		l.Write([]byte("123456789\n"))
	}
	l.Write([]byte("the end\n"))
	if n := len(l.String()); n != logLimit {
		t.Errorf("it keeps %d bytes, want %d", n, logLimit)
	}
	end := l.end()
	if len(end) > errorLimit || !strings.HasPrefix(end, "123456789\n") || !strings.HasSuffix(end, "the end") {
		t.Errorf("an error quotes %d bytes: %q", len(end), end)
	}
}

func TestControls(t *testing.T) {
	all, err := Controls()
	if err != nil {
		t.Fatal(err)
	}
	own, err := kernelcc.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, cc := range []string{"reno", own} {
		if !strings.Contains(" "+strings.Join(all, " ")+" ", " "+cc+" ") {
			t.Errorf("%s is not among %s", cc, all)
		}
	}
}

func TestDrawAlike(t *testing.T) {
	rule := "rules:\n- name: a\n  learn: {hold_out: 5%}\n"
	for name, tt := range map[string]struct {
		config string
		want   []string // lines
	}{
		"empty":            {"", []string{"learning: {draw_key: K}"}},
		"no section":       {strings.TrimSuffix(rule, "\n"), []string{"rules:", "- name: a", "  learn: {hold_out: 5%}", "learning: {draw_key: K}"}},
		"a section":        {"interval: 1s\nlearning:\n    hold_out: 10%\n", []string{"interval: 1s", "learning:", "    draw_key: K", "    hold_out: 10%"}},
		"one in one line":  {"learning: {lease: 3s, paths: {ipv4: 32}}\n", []string{"learning: {draw_key: K, lease: 3s, paths: {ipv4: 32}}"}},
		"its own":          {"learning: {draw_key: mine}\n", []string{"learning: {draw_key: mine}"}},
		"an empty section": {"learning: {}\n", []string{"learning: {draw_key: K}"}},
	} {
		got, err := drawAlike(tt.config, "K")
		if want := strings.Join(tt.want, "\n") + "\n"; got != want || err != nil {
			t.Errorf("%s: %v,\n%s\nwant\n%s", name, err, got, want)
		}
	}
	if _, err := drawAlike("learning:\n", "K"); err == nil || !strings.Contains(err.Error(), "has no keys") {
		t.Errorf("a section without keys: %v", err)
	}
}
