package config

import (
	"errors"
	"flag"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

var update = flag.Bool("update", false, "write docs/config.md")

const docs = "../../docs"

func parse(t *testing.T, file string) *Config {
	t.Helper()
	cfg, err := Parse("f", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func example(t *testing.T, name string) *Config {
	t.Helper()
	cfg, err := Load(filepath.Join(docs, "examples", name))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestEmptyFilesAreTheDefault(t *testing.T) {
	for _, file := range []string{"", "\n", "# nothing\n", "---\n", "\ufeff", "\ufeff# nothing\r\n", "{}\n", "rules: []\n", "log: {}\n"} {
		if got := parse(t, file); !reflect.DeepEqual(got, Default()) {
			t.Errorf("%q: got %+v", file, got)
		}
	}
}

func ruleText(r *policy.Rule) string { return r.Name + ": " + r.Match.String() + ": " + r.Action() }

func TestDefault(t *testing.T) {
	c := Default()
	if c.Socket.Path != "/run/tcpilot/tcpilot.sock" || c.Learning.Lease != 10*time.Second || c.Learning.HoldOut != 0.02 {
		t.Errorf("got %+v", c)
	}
	var names []string
	for _, r := range c.Rules {
		names = append(names, ruleText(&r))
	}
	want := []string{
		"loopback: remote 127.0.0.0/8|::1/128: leave",
		"own-traffic: local port 9732: leave",
		"default: every connection: learn",
	}
	if l := c.Rules[2].Learn; l.Arms != nil || l.Objective != learn.Throughput || l.HoldOut != 0.02 {
		t.Errorf("the rule of a file that has none: %+v", l)
	}
	if !reflect.DeepEqual(names, want) {
		t.Errorf("rules:\n got %q\nwant %q", names, want)
	}
}

func TestBuiltinRulesFollowTheFile(t *testing.T) {
	for file, want := range map[string]int{
		"builtin_rules: false\n":                  0,
		"metrics: {listen: \"\"}\n":               1,
		"metrics: {listen: \"127.0.0.1:0\"}\n":    1,
		"metrics: {listen: \"[::]:80\"}\n":        2,
		"metrics: {listen: \"localhost:8080\"}\n": 2,
	} {
		n := 0
		for _, r := range parse(t, file).Rules {
			if r.Builtin {
				n++
			}
		}
		if n != want {
			t.Errorf("%q: %d built-in rules, want %d", file, n, want)
		}
	}
}

func TestEverySettingIsRead(t *testing.T) {
	got := parse(t, `
cgroup: /sys/fs/cgroup/web
bpffs: /mnt/bpf
run_dir: /run/x
state_dir: /var/x
pods: {dir: /var/lib/p, bandwidth: "off", host_routing: "on", big_tcp: "on", node_routes: "on", devices: [eth0], networks: [10.1.0.0/16, "fd01::/48"],
  kubernetes: {in_cluster: "off", kubeconfig: /etc/k, node: n1}}
interval: 0
socket: {path: /run/y.sock, mode: 0o600, group: adm}
metrics: {listen: "[::1]:9000", top_paths: 0}
log: {level: warn, format: json}
mode: observe
learning:
  learner: epsilon-greedy
  hold_out: 0.1
  lease: 1m
  policy_ttl: 2m
  half_life: 1h
  draw_key: fleet
  save_interval: 30s
  paths: {ipv4: 32, ipv6: 64, limit: 100, overrides: [{prefix: 10.0.0.0/8, bits: 16}]}
buffers: {adapt: true, max: 1GiB}
host: {netns: all, sysctls: {net.ipv4.tcp_comp_sack_nr: 0, net.ipv4.tcp_notsent_lowat: 4294967295}}
congestion_controls: [tcpilot_ledbat, tcpilot_bbr3]
builtin_rules: false
`)
	want := &Config{
		Buffers:            Buffers{Adapt: true, Max: 1 << 30},
		Host:               Host{NetNS: "all", Sysctls: HostSysctls{"net.ipv4.tcp_comp_sack_nr": "0", "net.ipv4.tcp_notsent_lowat": "4294967295"}},
		CongestionControls: ControlList{cc("tcpilot_ledbat"), cc("tcpilot_bbr3")},
		Cgroup:             "/sys/fs/cgroup/web", BPFFS: "/mnt/bpf", RunDir: "/run/x", StateDir: "/var/x", Mode: "observe",
		Pods: Pods{Dir: "/var/lib/p", Bandwidth: "off", HostRouting: "on", BigTCP: "on", NodeRoutes: "on", Devices: []string{"eth0"},
			Networks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/48")}, Kubernetes: Kubernetes{InCluster: "off", Kubeconfig: "/etc/k", Node: "n1"}},
		Socket:  Socket{Path: "/run/y.sock", Mode: 0o600, Group: "adm", Read: ReadSocket{Mode: 0o660}},
		Metrics: Metrics{Listen: "[::1]:9000"},
		Log:     Log{Level: slog.LevelWarn, Format: "json"},
		Learning: Learning{
			Learner: "epsilon-greedy", HoldOut: 0.1, Lease: time.Minute, PolicyTTL: 2 * time.Minute,
			HalfLife: time.Hour, SaveInterval: 30 * time.Second, DrawKey: "fleet",
			Paths: Paths{IPv4: 32, IPv6: 64, Limit: 100, Overrides: []Override{{netip.MustParsePrefix("10.0.0.0/8"), 16}}},
		},
		Rules: []policy.Rule{{Name: "default", Learn: &policy.Learn{HoldOut: 0.1}, Adapt: policy.AdaptedByDefault}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// By default only root can use the administrators' socket; a configured group can use it as
// well.
func TestSocketPermissions(t *testing.T) {
	for file, want := range map[string]Socket{
		"":                                  {Mode: 0o600, Read: ReadSocket{Mode: 0o660}},
		"socket: {admins: net}":             {Mode: 0o660, Group: "net", Admins: "net", Read: ReadSocket{Mode: 0o660}},
		"socket: {group: ops}":              {Mode: 0o660, Group: "ops", Read: ReadSocket{Mode: 0o660}},
		"socket: {group: ops, admins: net}": {Mode: 0o660, Group: "ops", Admins: "net", Read: ReadSocket{Mode: 0o660}},
		"socket: {admins: net, mode: 0600}": {Mode: 0o600, Group: "net", Admins: "net", Read: ReadSocket{Mode: 0o660}},
		"socket: {read: {group: all, mode: 0666, path: /run/r}}": {Mode: 0o600, Read: ReadSocket{Path: "/run/r", Mode: 0o666, Group: "all"}},
	} {
		want.Path = "/run/tcpilot/tcpilot.sock"
		if got := parse(t, file).Socket; got != want {
			t.Errorf("%q:\n got %+v\nwant %+v", file, got, want)
		}
	}
}

func TestEveryPartOfARuleIsRead(t *testing.T) {
	got := parse(t, `
rules:
- name: all
  match:
    remote: [10.0.0.0/8, "2001:db8::1"]
    local: 10.0.0.0/8
    remote_port: [443, 8000-8100]
    local_port: 80
    cgroup: /system.slice/nginx.service
    netns: [blue, /proc/7/ns/net, 42]
    pod: {namespace: shop, name: [web-*, 7], annotation: {tcpilot.io/profile: bulk, a/b: true}}
    direction: outgoing
    same_prefix: {ipv6: 44, ipv4: 16}
  set: {init_cwnd: 40, syn_rto: 10ms}
  learn: {arms: [cubic, bbr], objective: fct, hold_out: 5%, scope: netns}
  watch: {events: [rto, state]}
  on_rto: {cc: bbr, after: 5, share: 50%}
  rollout: 12.5%
- name: any-pod
  match: {pod: {}}
  learn: {}
- name: rest
  set: {cc: bbr}
  on_rto: {cc: reno}
`).Rules[2:]
	cc := func(name string) tcp.CC { c, _ := tcp.ParseCC(name); return c }
	var set tcp.Params
	set.Set(tcp.InitCwnd, 40)
	set.Set(tcp.SynRTO, 10)
	ten := netip.MustParsePrefix("10.0.0.0/8")
	want := []policy.Rule{
		{
			Name: "all",
			Match: policy.Match{
				Remote: []netip.Prefix{ten, netip.MustParsePrefix("2001:db8::1/128")}, Local: []netip.Prefix{ten},
				RemotePort: []policy.PortRange{{First: 443, Last: 443}, {First: 8000, Last: 8100}},
				LocalPort:  []policy.PortRange{{First: 80, Last: 80}},
				Cgroup:     []string{"/system.slice/nginx.service"}, NetNS: []string{"blue", "/proc/7/ns/net", "42"},
				Pod:       &pod.Match{Namespace: []string{"shop"}, Name: []string{"web-*", "7"}, Annotations: map[string]string{"tcpilot.io/profile": "bulk", "a/b": "true"}},
				Direction: policy.Outgoing, Same: policy.Same{IPv6: 44, IPv4: 16},
			},
			Set:   set,
			Adapt: []tcp.Field{tcp.ResumeCwnd, tcp.InitRwnd},
			Learn: &policy.Learn{Arms: []tcp.CC{cc("cubic"), cc("bbr")}, Objective: learn.FCT, HoldOut: 0.05, OwnScope: true},
			Watch: policy.Watch{Events: class.WatchRTO | class.WatchState, Share: 0.01}, Rollout: 0.125, OnRTO: policy.OnRTO{CC: cc("bbr"), After: 5, Share: 0.5},
		},
		{Name: "any-pod", Match: policy.Match{Pod: &pod.Match{}}, Learn: &policy.Learn{HoldOut: 0.02}, Adapt: policy.AdaptedByDefault},
		{Name: "rest", CC: cc("bbr"), OnRTO: policy.OnRTO{CC: cc("reno"), After: 3, Share: 1}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestRulesTakeTheHoldOutOfLearning(t *testing.T) {
	c := parse(t, "rules:\n- {name: a, learn: {}, match: {remote_port: 1}}\n- {name: b, learn: {hold_out: 0}}\nlearning: {hold_out: 10%}\n")
	if a, b := c.Rules[2].Learn, c.Rules[3].Learn; a.HoldOut != 0.1 || b.HoldOut != 0 || a.Arms != nil {
		t.Errorf("got %+v, %+v", a, b)
	}
}

func TestPathBits(t *testing.T) {
	p := &parse(t, `learning: {paths: {overrides: [{prefix: 10.0.0.0/8, bits: 16}, {prefix: 10.1.0.0/16, bits: 32}, {prefix: "2001:db8::/32", bits: 64}]}}`).Learning.Paths
	for addr, want := range map[string]int{
		"192.0.2.1": 24, "10.0.0.1": 16, "10.1.0.1": 32, "::ffff:10.1.0.1": 32, "2001:db8::1": 64, "fe80::1%eth0": 48,
	} {
		if got := p.Bits(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: got %d, want %d", addr, got, want)
		}
	}
}

func TestReferenceExampleIsTheDefault(t *testing.T) {
	if got := example(t, "tcpilot.yaml"); !reflect.DeepEqual(got, Default()) {
		t.Errorf("got  %+v\nwant %+v", got, Default())
	}
	data, err := os.ReadFile(filepath.Join(docs, "examples", "tcpilot.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range allKeys(reflect.TypeFor[Config]()) {
		if !strings.Contains(string(data), key+":") {
			t.Errorf("the example does not show %s", key)
		}
	}
}

func allKeys(t reflect.Type) (keys []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		keys = append(keys, f.Tag.Get("key"))
		if f.Type.Kind() == reflect.Struct {
			keys = append(keys, allKeys(f.Type)...)
		}
	}
	return keys
}

// Every key and every text in the tags must be valid: a range that does not parse would
// silently be ignored.
func TestTagsAreSound(t *testing.T) {
	var check func(reflect.Type)
	check = func(s reflect.Type) {
		for i := range s.NumField() {
			f := s.Field(i)
			if f.Tag.Get("key") == "" || f.Tag.Get("doc") == "" {
				t.Errorf("%s.%s has no key or no doc", s, f.Name)
			}
			e := f.Type
			for e.Kind() == reflect.Pointer || e.Kind() == reflect.Slice {
				e = e.Elem()
			}
			if e == reflect.TypeFor[time.Duration]() && (tagDuration(f.Tag, "min") <= 0 || tagDuration(f.Tag, "max") <= 0) {
				t.Errorf("%s.%s has no range", s, f.Name)
			}
			if e.Kind() == reflect.Struct && strings.HasSuffix(e.PkgPath(), "/config") && e != reflect.TypeFor[setValues]() {
				check(e)
			}
		}
	}
	check(reflect.TypeFor[Config]())
	check(reflect.TypeFor[fileRule]())
}

func TestReferenceIsUpToDate(t *testing.T) {
	name := filepath.Join(docs, "config.md")
	if *update {
		if err := os.WriteFile(name, []byte(Reference()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(name)
	if err != nil || string(have) != Reference() {
		t.Errorf("%s is stale (%v): run go generate ./internal/config", name, err)
	}
	for _, spec := range tcp.Fields {
		if !strings.Contains(string(have), "`"+spec.Name+"`") {
			t.Errorf("field %s is missing", spec.Name)
		}
	}
}

// matched compiles the rules of a configuration and returns the name of the one that matches c.
func matched(t *testing.T, cfg *Config, c class.Conn) *policy.Rule {
	t.Helper()
	ids := make([]uint32, len(cfg.Rules))
	for i := range ids {
		ids[i] = uint32(i + 1)
	}
	table, waiting, err := policy.Compile(cfg.Rules, ids, policy.Resolver{})
	if err != nil || len(waiting) != 0 {
		t.Fatal(waiting, err)
	}
	if i := table.Classify(&c); i >= 0 {
		return &cfg.Rules[i]
	}
	return nil
}

func values(r *policy.Rule) map[string]uint64 {
	m := make(map[string]uint64)
	for _, f := range r.Set.Fields() {
		m[f.String()], _ = r.Set.Get(f)
	}
	return m
}

func TestDatacentreClampExample(t *testing.T) {
	cfg := example(t, "datacentre-clamp.yaml")
	conn := func(local, remote string) class.Conn {
		return class.Conn{Local: netip.MustParseAddr(local), Remote: netip.MustParseAddr(remote)}
	}
	r := matched(t, cfg, conn("2401:db00:21::1", "2401:db00:2f:7::1"))
	want := map[string]uint64{"syn_rto": 10, "synack_rto": 10, "sndbuf": 150000, "rcvbuf": 150000, "cwnd_clamp": 100}
	if r.Name != "datacentre" || !reflect.DeepEqual(values(r), want) {
		t.Errorf("within the datacentre: %s", ruleText(r))
	}
	for _, c := range []class.Conn{conn("2401:db00:21::1", "2401:db00:31::1"), conn("10.0.0.1", "10.0.0.2")} {
		if r := matched(t, cfg, c); r.Name != "default" {
			t.Errorf("%v: %s", c, ruleText(r))
		}
	}
	if r := matched(t, cfg, conn("::1", "::1")); r.Name != "loopback" {
		t.Errorf("loopback: %s", ruleText(r))
	}
}

func TestInitialWindowExample(t *testing.T) {
	cfg := example(t, "initial-window.yaml")
	conn := class.Conn{Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddr("10.0.0.2"), LocalPort: 40000, RemotePort: 5560}
	want := map[string]uint64{"init_cwnd": 40, "init_rwnd": 40, "sndbuf": 1500000, "rcvbuf": 1500000}
	for range 2 {
		if r := matched(t, cfg, conn); !reflect.DeepEqual(values(r), want) {
			t.Errorf("port 5560: %s", ruleText(r))
		}
		conn.LocalPort, conn.RemotePort = conn.RemotePort, conn.LocalPort
	}
	conn.RemotePort = 5561
	if r := matched(t, cfg, conn); r.Name != "default" {
		t.Errorf("another port: %s", ruleText(r))
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range mistakes {
		f.Add([]byte(c.file))
	}
	for _, name := range []string{"tcpilot.yaml", "datacentre-clamp.yaml", "initial-window.yaml"} {
		data, err := os.ReadFile(filepath.Join(docs, "examples", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Parse("f", data)
		if (cfg == nil) == (err == nil) {
			t.Fatalf("got %v and %v", cfg, err)
		}
		var list yamlfile.Errors
		if err != nil && (!errors.As(err, &list) || len(list) == 0) {
			t.Fatalf("not a list of mistakes: %v", err)
		}
		lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + 1
		for _, e := range list {
			if e.Line < 1 || e.Col < 1 || e.Line > lines+1 || e.Problem == "" || e.WhatToDo == "" {
				t.Errorf("mistake without place or advice: %+v", e)
			}
		}
		if cfg == nil {
			return
		}
		ids := make([]uint32, len(cfg.Rules))
		for i := range ids {
			ids[i] = uint32(i + 1)
		}
		table, _, err := policy.Compile(cfg.Rules, ids, policy.Resolver{})
		if err != nil {
			t.Fatalf("a configuration that does not compile: %v", err)
		}
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestWrittenKeepsTheUnit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "rules:\n- {name: a, match: {remote: [192.0.2.0/24]}, set: {rto_min: 5000us, init_cwnd: 20, cc: cubic}}\n- {name: b, learn: {}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Written(file)
	if want := map[string]map[string]string{"a": {"rto_min": "5000us", "init_cwnd": "20"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if _, err := Written("/no/such/file"); err == nil {
		t.Error("no error for a file that is not there")
	}
}
