package policy

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestCompilePods(t *testing.T) {
	shop := &pod.Match{Namespace: []string{"shop"}}
	rules := []Rule{
		{Name: "shop", Match: Match{Pod: shop}, CC: tcp.CCOf("bbr")},
		{Name: "both", Match: Match{Pod: &pod.Match{Name: []string{"web-*"}}, NetNS: []string{"blue", "13"}}, Learn: &Learn{}},
		{Name: "gone", Match: Match{Pod: &pod.Match{Namespace: []string{"gone"}}}, Learn: &Learn{}},
		{Name: "any", Match: Match{Pod: &pod.Match{}}, Learn: &Learn{}},
		{Name: "rest", Learn: &Learn{}},
	}
	table, waiting, err := Compile(rules, ids(5), worldResolver())
	if err != nil || waiting != nil {
		t.Fatalf("%v, waiting %v", err, waiting)
	}
	want := map[uint64]class.Set{11: setOf(0, 1, 3, 4), 12: setOf(0, 3, 4), 14: setOf(3, 4)}
	if !reflect.DeepEqual(table.NetNS, want) || table.AnyNetNS != setOf(4) || table.Dims != class.DimNetNS {
		t.Errorf("netns %v, any %v, dims %b", table.NetNS, table.AnyNetNS, table.Dims)
	}
	if !table.Classes[0].Named || table.Classes[4].Named {
		t.Errorf("classes %+v", table.Classes)
	}
	if table, _, err = Compile(rules[:1], ids(1), Resolver{}); err != nil || table.Classify(&class.Conn{NetNS: 11}) != -1 {
		t.Errorf("without pods a rule for pods matches: %v", err)
	}
}

func TestPodShadows(t *testing.T) {
	pods := func(m pod.Match) Match { return Match{Pod: &m} }
	shop, web := pod.Match{Namespace: []string{"shop"}}, pod.Match{Namespace: []string{"shop"}, Name: []string{"web"}}
	in := func(m Match, netns ...string) Match { m.NetNS = netns; return m }
	for _, c := range []struct {
		name  string
		match []Match
		by    []int
	}{
		{"same pods", []Match{pods(shop), pods(shop)}, []int{0}},
		{"fewer pods", []Match{pods(shop), pods(web)}, []int{0}},
		{"more pods", []Match{pods(web), pods(shop)}, nil},
		{"any pod is not every socket", []Match{pods(pod.Match{}), {}}, nil},
		{"after one for all", []Match{{}, pods(shop)}, []int{0}},
		{"a namespace is not a pod", []Match{in(Match{}, "x"), pods(shop)}, nil},
		{"pods of a namespace", []Match{in(pods(shop), "x"), in(Match{}, "x")}, nil},
		{"two namespaces together", []Match{in(Match{}, "x"), in(pods(shop), "y"), in(pods(web), "x", "y")}, []int{0, 1}},
		{"two namespaces, one for other pods", []Match{in(Match{}, "x"), in(pods(web), "y"), in(pods(shop), "x", "y")}, nil},
	} {
		rules := make([]Rule, len(c.match))
		for i, m := range c.match {
			rules[i].Match = m
		}
		var by []int
		for _, s := range Shadows(rules) {
			if s.Rule == len(rules)-1 {
				by = s.By
			}
		}
		if !reflect.DeepEqual(by, c.by) {
			t.Errorf("%s: got %v, want %v", c.name, by, c.by)
		}
	}
}

func TestWithPodControls(t *testing.T) {
	bbr, dctcp := tcp.CCOf("bbr"), tcp.CCOf("dctcp")
	rules := []Rule{
		{Name: "left", Match: Match{LocalPort: []PortRange{{1, 1}}}, Leave: true},
		{Name: "own", Match: Match{Pod: &pod.Match{Annotations: map[string]string{ControlAnnotation: "b*"}}}, Watch: Watch{1, 1}},
		{Name: "web", Match: Match{LocalPort: []PortRange{{443, 443}}}, Learn: &Learn{HoldOut: 0.1}, Set: params(tcp.InitCwnd, 30),
			Adapt: []tcp.Field{tcp.SynRTO}, Limit: RateLimit{Total: 1e6}, Rollout: 0.5},
	}
	got, err := WithPodControls(rules, []tcp.CC{bbr, dctcp})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i := range got {
		lines = append(lines, got[i].Describe())
	}
	want := []string{
		"left: local port 1: leave",
		"own@bbr: pod */* [tcpilot.io/congestion-control=bbr]: set", // dctcp is not b*
		"own: pod */* [tcpilot.io/congestion-control=b*]: watch",
		"web@bbr: local port 443, pod */* [tcpilot.io/congestion-control=bbr]: set",
		"web@dctcp: local port 443, pod */* [tcpilot.io/congestion-control=dctcp]: set",
		"web: local port 443: set+learn",
		"@bbr: pod */* [tcpilot.io/congestion-control=bbr]: set",
		"@dctcp: pod */* [tcpilot.io/congestion-control=dctcp]: set",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got:\n%s", strings.Join(lines, "\n"))
	}
	v := got[3]
	if v.CC != bbr || v.Learn != nil || v.Adapt != nil || v.Of != "web" || v.Rollout != 0.5 || v.LimitKey() != rules[2].LimitKey() || !reflect.DeepEqual(v.Set, rules[2].Set) {
		t.Errorf("variant %+v", v)
	}
	if rules[2].Learn == nil || rules[1].Match.Pod.Annotations[ControlAnnotation] != "b*" {
		t.Error("the rules themselves were changed")
	}
	if got, err := WithPodControls(rules, nil); err != nil || len(got) != 3 || &got[0] != &rules[0] {
		t.Errorf("without values: %d rules, %v", len(got), err)
	}
	if got, err := WithPodControls([]Rule{{Name: "all", Learn: &Learn{}}}, []tcp.CC{bbr}); err != nil || len(got) != 2 {
		t.Errorf("a rule after one for all: %d, %v", len(got), err)
	}
	if _, err := WithPodControls(make([]Rule, 100), []tcp.CC{bbr, dctcp}); err == nil || !strings.Contains(err.Error(), "make 300 rules, at most 256") {
		t.Errorf("too many: %v", err)
	}
}

// A connection has the first rule that matches it, or the variant of that rule for its pod's annotation.
func TestVariantsKeepTheOrderOfRules(t *testing.T) {
	pods := []pod.Pod{{Cookie: 11, Name: "a", Annotations: map[string]string{ControlAnnotation: "bbr"}}, {Cookie: 12, Name: "b"},
		{Cookie: 14, Name: "c", Annotations: map[string]string{ControlAnnotation: "dctcp"}}}
	set := pod.NewSet(pods)
	resolver := worldResolver()
	resolver.Pods = set.Cookies
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		rules, id := randomRules(r, 1+r.IntN(8))
		for i := range rules {
			rules[i].Leave = r.IntN(4) == 0
		}
		with, err := WithPodControls(rules, []tcp.CC{tcp.CCOf("bbr"), tcp.CCOf("dctcp")})
		if err != nil {
			t.Fatal(err)
		}
		before, _, err1 := Compile(rules, id, resolver)
		after, _, err2 := Compile(with, ids(len(with)), resolver)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		for range 60 {
			c := randomConn(r)
			rule, cc := before.Classify(&c), ""
			if p := set.ByCookie(c.NetNS); p != nil {
				cc = p.Annotations[ControlAnnotation]
			}
			want := ""
			if rule >= 0 {
				want = rules[rule].Name
			}
			if cc != "" && (rule < 0 || !rules[rule].Leave) {
				want += "@" + cc
			}
			got := ""
			if i := after.Classify(&c); i >= 0 {
				got = with[i].Name
			}
			if got != want {
				t.Fatalf("seed %d: %+v: rule %q, want %q", seed, c, got, want)
			}
		}
	}
}

func TestUnknownProfile(t *testing.T) {
	rules := []Rule{
		{Name: "all", Match: Match{Pod: &pod.Match{}}},
		{Name: "bulk", Match: Match{Pod: &pod.Match{Annotations: map[string]string{profileAnnotation: "bulk*"}}}},
		{Name: "rpc", Match: Match{Pod: &pod.Match{Namespace: []string{"shop"}, Annotations: map[string]string{profileAnnotation: "rpc"}}}},
		{Name: "rest"},
	}
	for profile, known := range map[string]map[string]bool{
		"bulk": {"shop": true, "other": true}, "bulk-2": {"shop": true}, "rpc": {"shop": true, "other": false}, "": {"shop": false}, "blk": {"shop": false},
	} {
		for namespace, want := range known {
			why := UnknownProfile(rules, &pod.Pod{Namespace: namespace, Annotations: map[string]string{profileAnnotation: profile}})
			if (why == "") != want {
				t.Errorf("%s/%s: %q", namespace, profile, why)
			}
		}
	}
	if why := UnknownProfile(rules, &pod.Pod{Annotations: map[string]string{"a": "b"}}); why != "" {
		t.Error(why)
	}
	long := &pod.Pod{Annotations: map[string]string{profileAnnotation: strings.Repeat("\n", 1000)}}
	if why := UnknownProfile(nil, long); len(why) > 200 || strings.Contains(why, "\n") {
		t.Errorf("%q", why)
	}
}
