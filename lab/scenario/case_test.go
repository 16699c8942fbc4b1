package scenario

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/subject"
	"github.com/tcpilot/tcpilot/lab/workload"
)

// read reads a file that must have no mistakes.
func read(t *testing.T, file string, o Options) *Scenario {
	t.Helper()
	s, err := Read("x.yaml", []byte(file), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Keys that a file leaves out have defaults.
func TestDefaults(t *testing.T) {
	s := read(t, with(), Options{})
	if len(s.Cases) != 1 || s.Cases[0].Name != "" {
		t.Fatalf("%d cases, want one without a name", len(s.Cases))
	}
	c := s.Cases[0]
	if !slices.Equal(c.Tuned, []string{"sender1", "sender2"}) {
		t.Errorf("tuned: %v, want the senders", c.Tuned)
	}
	if c.Baseline != "cubic" || c.Primary != "goodput" || !slices.Equal(c.Metrics, []string{"goodput"}) || c.Repeat != 5 || c.Warmup != 0 {
		t.Errorf("baseline %s, primary %s, metrics %v, repeat %d, warmup %d", c.Baseline, c.Primary, c.Metrics, c.Repeat, c.Warmup)
	}
	want := []workload.Spec{{Name: "bulk", Kind: workload.Bulk, Duration: time.Second, Sample: sampled}}
	if !reflect.DeepEqual(c.Traffic, want) {
		t.Errorf("traffic %+v, want %+v", c.Traffic, want)
	}
}

// Mappings are merged by key, other values are replaced, in this order: file, case,
// then the sections that the options choose, the case's own last.
func TestVariants(t *testing.T) {
	file := with(
		"repeat: 4",
		"metrics: [rtt, retrans]",
		"traffic: {bulk: {kind: bulk, duration: 4s, streams: 2}}",
		"quick: {repeat: 1, only: [b, c], traffic: {bulk: {duration: 1s}}}",
		"emulated: {links: {bottleneck: {rate: 5Mbit/s}}, traffic: {bulk: {streams: 1}}}",
		`cases:
  - {name: a}
  - {name: b, metrics: [jain], traffic: {bulk: {streams: 8}, ping: {kind: rpc, duration: 2s}}, quick: {repeat: 2}}
  - {name: c, repeat: 9}`)
	type figures struct {
		repeat, streams int
		duration        time.Duration
		rate            uint64
	}
	for _, v := range []struct {
		o    Options
		want map[string]figures
	}{
		{Options{}, map[string]figures{
			"a": {4, 2, 4 * time.Second, 10e6}, "b": {4, 8, 4 * time.Second, 10e6}, "c": {9, 2, 4 * time.Second, 10e6}}},
		{Options{Quick: true}, map[string]figures{
			"b": {2, 8, time.Second, 10e6}, "c": {1, 2, time.Second, 10e6}}},
		{Options{Emulated: true}, map[string]figures{
			"a": {4, 1, 4 * time.Second, 5e6}, "b": {4, 1, 4 * time.Second, 5e6}, "c": {9, 1, 4 * time.Second, 5e6}}},
		{Options{Quick: true, Emulated: true}, map[string]figures{
			"b": {2, 1, time.Second, 5e6}, "c": {1, 1, time.Second, 5e6}}},
	} {
		got := make(map[string]figures)
		for _, c := range read(t, file, v.o).Cases {
			bulk := c.Traffic[0]
			got[c.Name] = figures{c.Repeat, bulk.Streams, bulk.Duration, c.Links["bottleneck"].Forward.Rate}
			if n := len(c.Traffic); (n == 2) != (c.Name == "b") {
				t.Errorf("case %s has %d parts of traffic", c.Name, n)
			}
			metrics := []string{"goodput", "rtt", "retrans"}
			if c.Name == "b" {
				metrics = []string{"goodput", "jain"}
			}
			if !slices.Equal(c.Metrics, metrics) {
				t.Errorf("case %s: metrics %v, want %v", c.Name, c.Metrics, metrics)
			}
		}
		if !reflect.DeepEqual(got, v.want) {
			t.Errorf("%+v:\ngot  %v\nwant %v", v.o, got, v.want)
		}
	}
}

// Web traffic that is split into groups has metrics of each group.
func TestWeb(t *testing.T) {
	const web = "traffic: {w: {kind: web, count: 300, first: 200, size: 1MB, concurrency: 5, client: curl}}"
	c := read(t, with(web, "fresh: true", "ratios: true", "cc: bbr", "subjects: [default, tcpilot]",
		"primary: w/later/fct_p95", "metrics: [w/first/fct_mean]"), Options{}).Cases[0]
	want := workload.Spec{Name: "w", Kind: workload.Web, Count: 300, First: 200, Concurrency: 5, Client: workload.Curl,
		Size: workload.Size{Fixed: 1_000_000}}
	if !reflect.DeepEqual(c.Traffic, []workload.Spec{want}) {
		t.Errorf("traffic %+v, want %+v", c.Traffic, want)
	}
	if !c.Fresh || !c.Ratios || c.DefaultCC() != "bbr" || c.Primary != "w/later/fct_p95" {
		t.Errorf("case %+v", c)
	}
	for text, wrong := range map[string]string{
		with(strings.Replace(web, "first: 200, ", "", 1), "primary: w/later/fct_p95"): "w/later",
		with(strings.Replace(web, "curl", "wget", 1)):                                 "wget",
		with(strings.Replace(web, "first: 200", "first: 300", 1)):                     "first",
		with(strings.Replace(web, "size: 1MB, ", "", 1)):                              "size",
	} {
		if _, err := Read("x.yaml", []byte(text), Options{}); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v, want %s in it", text, err, wrong)
		}
	}
}

func linkOf(t *testing.T, topology, links, name string) Link {
	t.Helper()
	return read(t, with(topology, links), Options{}).Cases[0].Links[name]
}

// Keys beside forward and backward apply to both directions, unless a direction has its
// own.
func TestLinkDirections(t *testing.T) {
	got := linkOf(t, lines[4], `links: {bottleneck: {rtt: 30ms, loss: 1%, rate: 8Mbit/s,
  forward: {loss: 2%, jitter: 1ms, bursts: {to_bad: 1%, to_good: 0.5, loss_bad: 100%}},
  backward: {delay: 5ms, rate: 0, policer: {rate: 1Mbit/s, burst: 10KiB}, offload: false}}}`, "bottleneck")
	want := Link{
		Forward: link.Spec{Delay: 15 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.02, Rate: 8e6,
			Bursts: link.Bursts{ToBad: 0.01, ToGood: 0.5, LossBad: 1}},
		Backward: link.Spec{Delay: 5 * time.Millisecond, Loss: 0.01, Policer: link.Policer{Rate: 1e6, Burst: 10240}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// The bandwidth-delay product is that of the longest path through the link.
func TestQueue(t *testing.T) {
	const far = `topology: {hosts: {s: sender, g: router, near: receiver, far: receiver}, links: {in: [s, g], a: [g, near], b: [g, far]}}`
	for _, c := range []struct {
		topology, links, name string
		bytes, packets        uint64
	}{
		{lines[4], "links: {bottleneck: {rate: 8Mbit/s, queue: 64KiB}}", "bottleneck", 65536, 0},
		{lines[4], "links: {bottleneck: {rate: 8Mbit/s, queue: 1000p}}", "bottleneck", 0, 1000},
		{lines[4], "links: {bottleneck: {rate: 8Mbit/s, queue: 20 packets}}", "bottleneck", 0, 20},
		{lines[4], "links: {bottleneck: {rate: 8Mbit/s, rtt: 20ms, queue: 1.5bdp}}", "bottleneck", 30_000, 0},
		{lines[4], "links: {bottleneck: {rate: 8Mbit/s, queue: 1bdp}, sender2: {rtt: 10ms}, receiver1: {forward: {delay: 5ms}}}", "bottleneck", 15_000, 0},
		{lines[4], "links: {bottleneck: {rate: 8Mbit/s, rtt: 1ms, queue: 0.1bdp}}", "bottleneck", minQueue, 0},
		{lines[4], "links: {bottleneck: {rate: 8Mbit/s, rtt: 1ms, queue: 0}}", "bottleneck", 0, 0},
		{far, "links: {in: {rate: 8Mbit/s, queue: 1bdp}, a: {rtt: 10ms}, b: {rtt: 100ms}}", "in", 100_000, 0},
		{far, "links: {in: {rtt: 2ms}, a: {rtt: 10ms, rate: 8Mbit/s, queue: 1bdp}, b: {rtt: 100ms}}", "a", 12_000, 0},
	} {
		got := linkOf(t, c.topology, c.links, c.name).Forward.Queue
		if want := (link.Queue{Bytes: c.bytes, Packets: c.packets}); got != want {
			t.Errorf("%s: got %+v, want %+v", c.links, got, want)
		}
	}
}

// A change keeps what it does not name as the previous change left it.
func TestSchedule(t *testing.T) {
	l := linkOf(t, lines[4], `links: {bottleneck: {rtt: 20ms, rate: 8Mbit/s, queue: 1bdp, schedule: [
  {at: 1s, forward: {loss: 5%}}, {at: 2s, rate: 4Mbit/s}, {at: 3s, rtt: 40ms, forward: {loss: 0, queue: 1bdp}}]}}`, "bottleneck")
	type state struct {
		at                time.Duration
		loss              float64
		rate, queue, back uint64
		delay             time.Duration
	}
	var got []state
	for _, c := range l.Schedule {
		got = append(got, state{c.At, c.Forward.Loss, c.Forward.Rate, c.Forward.Queue.Bytes, c.Backward.Rate, c.Backward.Delay})
	}
	want := []state{
		{1 * time.Second, 0.05, 8e6, 20_000, 8e6, 10 * time.Millisecond},
		{2 * time.Second, 0.05, 4e6, 20_000, 4e6, 10 * time.Millisecond},
		{3 * time.Second, 0, 4e6, 10_000, 4e6, 20 * time.Millisecond}, // of the round trip at the start
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// The keys of a subject determine its kind.
func TestSubjects(t *testing.T) {
	file := with(`subjects:
  - default
  - htcp
  - bpftune
  - {name: mine, cc: brutal}
  - {name: iw, route: {initcwnd: 32, initrwnd: 40}, cc: reno}
  - {name: tuner, begin: tune --fast, end: "tune 'off': all"}
  - name: clamp
    tcpilot:
      learning: {hold_out: 5%}
      rules:
        - name: "a"
          match: {remote: ["fd00::/8", 10.0.0.0/8]}
          set: {cwnd_clamp: 20}`)
	want := []subject.Spec{
		{Name: "default", Kind: subject.Default},
		{Name: "htcp", Kind: subject.Fixed, CC: "htcp"},
		{Name: "bpftune", Kind: subject.Bpftune},
		{Name: "mine", Kind: subject.Fixed, CC: "brutal"},
		{Name: "iw", Kind: subject.Route, InitCwnd: 32, InitRwnd: 40, CC: "reno"},
		{Name: "tuner", Kind: subject.Command, Begin: "tune --fast", End: "tune 'off': all"},
		{Name: "clamp", Kind: subject.Tcpilot},
	}
	got := read(t, file, Options{}).Cases[0].Subjects
	if len(got) != len(want) {
		t.Fatalf("%d subjects, want %d", len(got), len(want))
	}
	text := got[6].Config
	got[6].Config = ""
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("got  %+v\nwant %+v", got[i], want[i])
		}
	}
	c, err := config.Parse("clamp", []byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if c.Learning.HoldOut != 0.05 || len(c.Rules) != 3 || c.Rules[2].Name != "a" {
		t.Errorf("%+v, from\n%s", c, text)
	}
}

// Without a congestion control of its own, a case has its baseline's as default.
func TestDefaultCC(t *testing.T) {
	c := Case{Baseline: "cubic", Subjects: []subject.Spec{{Name: "bbr", CC: "bbr"}, {Name: "cubic", CC: "cubic"}}}
	if got := c.DefaultCC(); got != "cubic" {
		t.Errorf("of the baseline: %q", got)
	}
	c.CC = "reno"
	if got := c.DefaultCC(); got != "reno" {
		t.Errorf("the case's own: %q", got)
	}
	c = Case{Baseline: "default", Subjects: []subject.Spec{{Name: "default", Kind: subject.Default}}}
	if got := c.DefaultCC(); got != "" {
		t.Errorf("the machine's: %q", got)
	}
}

// A plugin's keys are the JSON that its program reads: numbers and booleans as such, all else text.
func TestPlugins(t *testing.T) {
	s := read(t, with("topology: {kind: pods, nodes: 2}", "links: {}",
		`subjects: [{name: a, cc: bbr, cni: [{type: ptp, mtu: 9000, ipMasq: true, dns: {nameservers: ["1"]}}, {type: bandwidth, egressRate: 1e6}], annotations: {a/b: 10M}}]`,
		"baseline: a"), Options{}).Cases[0].Subjects[0]
	got := fmt.Sprintf("%s %s %s", s.Kind, s.CC, s.Annotations["a/b"])
	for _, p := range s.Plugins {
		got += " " + p.Type
		for _, key := range slices.Sorted(maps.Keys(p.Keys)) {
			got += fmt.Sprintf(" %s=%s", key, p.Keys[key])
		}
	}
	if want := `pods bbr 10M ptp dns={"nameservers":["1"]} ipMasq=true mtu=9000 bandwidth egressRate=1e6`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// Subjects of a network with pods connect them, and directly only without links between.
func TestSubjectsConnectPods(t *testing.T) {
	for subject, want := range map[string]string{
		"cubic":                           "does not connect",
		"{name: a, pods: host}":           "without links between",
		"{name: a, route: {initcwnd: 3}}": "does not connect",
	} {
		_, err := Read("x.yaml", []byte(with("topology: {kind: pods, nodes: 2}", "links: {wire: {rtt: 1ms}}", "subjects: ["+subject+"]", "baseline: "+map[bool]string{true: "cubic", false: "a"}[subject == "cubic"])), Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", subject, err, want)
		}
	}
}
