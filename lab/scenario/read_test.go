package scenario

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// lines is a valid file, line by line; tests replace a line of it.
var lines = []string{
	"name: a",
	"title: A",
	"source: ours",
	"expect: much",
	"topology: {kind: dumbbell, senders: 2}",
	"links: {bottleneck: {rtt: 20ms, rate: 10Mbit/s, queue: 1bdp}}",
	"traffic: {bulk: {kind: bulk, duration: 1s}}",
	"subjects: [cubic, tcpilot]",
}

// with is that file with the line of a key replaced, or with lines added.
func with(more ...string) string {
	file := strings.Clone(strings.Join(lines, "\n")) + "\n"
	for _, m := range more {
		key, _, _ := strings.Cut(m, ":")
		at := strings.Index("\n"+file, "\n"+key+":")
		if at < 0 {
			file += m + "\n"
			continue
		}
		end := at + strings.IndexByte(file[at:], '\n')
		file = file[:at] + m + file[end:]
	}
	return file
}

// mistakes are reported with their place, what is wrong, and what to do.
var mistakes = []struct{ name, file, at, key, problem, fix string }{
	// The form of the file.
	{"empty", "", "1:1", "", "the file is empty", "begin with name"},
	{"no YAML", "a: [\n", "1:4", "", "not YAML", "correct the YAML"},
	{"a list", "- a\n", "1:1", "", "want key: value entries, found a list", "begin with name"},
	{"two documents", with() + "---\nname: b\n", "10:1", "", "a second document", "remove the ---"},
	{"too large", strings.Repeat("# much\n", 10_000), "1:1", "", "larger than", "shorter"},
	{"anchor", with("cc: &x bbr"), "9:5", "cc", "anchors (&name)", "write the value out"},
	{"merge key", with("links: {<<: {a: b}}"), "6:9", "links", "merge keys (<<)", "write the entries out"},
	{"no value", with("baseline:"), "9:1", "baseline", "has no value", "remove the key"},
	{"twice", with() + "name: b\n", "9:1", "name", "already in line 1", "remove one"},
	{"list for value", with("cc: [bbr]"), "9:5", "cc", "want a single value, found a list", "write one value"},
	{"value for list", with("cases: a"), "9:8", "cases", "want a list, found a single value", `"- "`},
	{"empty list", with("metrics: []"), "9:10", "metrics", "the list is empty", "remove the key"},

	// Keys.
	{"no title", strings.Replace(with(), "title: A\n", "", 1), "1:1", "", "no title", "write title:"},
	{"no topology", strings.Replace(with(), lines[4]+"\n", "", 1), "1:1", "", "no topology", "dumbbell"},
	{"no traffic", strings.Replace(with(), lines[6]+"\n", "", 1), "1:1", "", "no traffic", "kind: bulk"},
	{"no subjects", strings.Replace(with(), lines[7]+"\n", "", 1), "1:1", "", "no subjects", "[cubic, bbr, tcpilot]"},
	{"unknown key", with("repeats: 3"), "9:1", "", `unknown key "repeats"`, `did you mean "repeat"?`},
	{"unlike any", with("frobnicate: 3"), "9:1", "", `unknown key "frobnicate"`, "there are name, "},
	{"unknown in quick", with("quick: {repaet: 3}"), "9:9", "quick", `unknown key "repaet"`, `did you mean "repeat"?`},
	{"head in quick", with("quick: {title: b}"), "9:16", "quick.title", "does not change title", ""},
	{"only nothing", with("quick: {only: [b]}"), "9:16", "quick.only[0]", `unknown case "b"`, "there are"},
	{"only in case", with("cases: [{name: b, quick: {only: [b]}}]"), "9:27", "cases[0].quick", `unknown key "only"`, ""},
	{"name in case's section", with("cases: [{name: b, quick: {name: c}}]"), "9:33", "cases[0].quick.name", "does not change name", ""},
	{"no case left", with("cases: [{name: b}, {name: c}]", "quick: {only: b}", "emulated: {only: c}"), "10:15", "quick.only", "select no case", ""},
	{"head in case", with("cases: [{name: b, expect: c}]"), "9:19", "cases[0]", `unknown key "expect"`, ""},
	{"no case", with("cases: []"), "9:8", "cases", "the list is empty", "remove the key"},
	{"case without name", with("cases: [{cc: bbr}]"), "9:9", "cases[0]", "a case without a name", "write name"},
	{"second case", with("cases: [{name: b}, {name: b}]"), "9:27", "cases[1].name", `a second case "b"`, "another name"},
	{"repeat", with("repeat: 0"), "9:9", "repeat", "0 is out of range", "write 1 to 1000"},
	{"no number", with("warmup: some"), "9:9", "warmup", "not a whole number", "bare"},
	{"no bool", with("cpu_bound: yes"), "9:12", "cpu_bound", "neither true nor false", "true or false"},
	{"need", with("needs: [netm]"), "9:9", "needs[0]", `unknown need "netm"`, "cc:dctcp"},
	{"sysctl", with("sysctls: {kernel.panic: 1}"), "9:25", "sysctls.kernel.panic", "not a sysctl of a network namespace", "net."},

	// The network.
	{"shape", with("topology: {kind: dumbell}"), "5:18", "topology.kind", `unknown kind of topology "dumbell"`, `"dumbbell"?`},
	{"size of another", with("topology: {kind: dumbbell, paths: 2}"), "5:28", "topology", `unknown key "paths"`, "senders, receivers"},
	{"too many", with("topology: {kind: dumbbell, senders: 101}"), "5:37", "topology.senders", "out of range", "1 to 100"},
	{"role", with("topology: {hosts: {a: sendr}, links: {l: [a, a]}}"), "5:23", "topology.hosts.a", "unknown role", `"sender"?`},
	{"one end", with("topology: {hosts: {a: sender}, links: {l: [a]}}"), "5:43", "topology.links.l", "two ends", "[a, b]"},
	{"no way", with("topology: {hosts: {a: sender, b: receiver}, links: {}}"), "5:11", "topology", "sender a has 0 links", "wire: [a, b]"},
	{"tuned", with("tuned: [sender]"), "9:9", "tuned[0]", `unknown host "sender"`, `"senders"?`},

	// Links.
	{"link", with("links: {botleneck: {rtt: 2ms}}"), "6:9", "links", `unknown key "botleneck"`, `"bottleneck"?`},
	{"delay", with("links: {bottleneck: {delay: 5}}"), "6:29", "links.bottleneck.delay", "has no unit", "such as 10ms"},
	{"rate without unit", with("links: {bottleneck: {rate: 10}}"), "6:28", "links.bottleneck.rate", "has no unit", "20Mbit/s"},
	{"share", with("links: {bottleneck: {loss: 5}}"), "6:28", "links.bottleneck.loss", "more than 100%", "5%"},
	{"queue", with("links: {bottleneck: {rate: 1Mbit/s, queue: 5km}}"), "6:44", "links.bottleneck.queue", "not a queue", "1.5bdp"},
	{"no bdp", with("links: {bottleneck: {rate: 1Mbit/s, queue: 1bdp}}"), "6:44", "links.bottleneck.queue",
		"no bandwidth-delay product without a delay", "delay"},
	{"queue of no rate", with("links: {bottleneck: {forward: {queue: 9kB}}}"), "6:39", "links.bottleneck.forward.queue", "requires a rate", ""},
	{"jitter", with("links: {bottleneck: {forward: {delay: 1ms, jitter: 2ms}}}"), "6:52", "links.bottleneck.forward.jitter", "0 to the delay", ""},
	{"change without time", with("links: {bottleneck: {schedule: [{loss: 1%}]}}"), "6:33", "links.bottleneck.schedule[0]", "without a time", "at:"},
	{"changes in disorder", with("links: {bottleneck: {schedule: [{at: 2s, loss: 1%}, {at: 1s}]}}"), "6:58",
		"links.bottleneck.schedule[1].at", "not later", "order of time"},
	{"bad change", with("links: {bottleneck: {schedule: [{at: 2s, jitter: 1ms}]}}"), "6:50",
		"links.bottleneck.schedule[0].jitter", "0 to the delay", ""},

	{"rate too high", with("links: {bottleneck: {rate: 200Gbit/s}}"), "6:28", "links.bottleneck.rate", "out of range", "at most 100Gbit/s"},
	// Traffic.
	{"no kind", with("traffic: {bulk: {duration: 1s}}"), "7:17", "traffic.bulk", "traffic without a kind", "bulk, rpc"},
	{"kind", with("traffic: {b: {kind: bulc}}"), "7:21", "traffic.b.kind", "unknown kind of traffic", `"bulk"?`},
	{"key of another kind", with("traffic: {b: {kind: bulk, duration: 1s, think: 1s}}"), "7:48", "traffic.b.think", "bulk traffic has none", ""},
	{"endless", with("traffic: {b: {kind: bulk}}"), "7:14", "traffic.b", "must end", ""},
	{"host", with("traffic: {b: {kind: bulk, duration: 1s, from: sender3}}"), "7:47", "traffic.b.from", `unknown host "sender3"`, `"senders"?`},
	{"slash", with("traffic: {a/b: {kind: bulk, duration: 1s}}"), "7:16", "traffic.a/b", "has no /", "rename"},
	{"pareto", with("traffic: {b: {kind: flows, count: 1, size: {alpha: 1}}}"), "7:44", "traffic.b.size", "bounded Pareto", "{alpha: 0.8"},
	{"trace", with("traffic: {b: {kind: flows, trace: [{at: 2s, size: 1kB}, {at: 1s, size: 1kB}]}}"), "7:57", "traffic.b.trace[1]", "earlier", "order"},

	{"too long", with("traffic: {bulk: {kind: bulk, duration: 20m}}"), "7:40", "traffic.bulk.duration", "out of range", "to 10m0s"},
	{"too many streams", with("traffic: {bulk: {kind: bulk, duration: 2s, streams: 1001}}"), "7:53", "traffic.bulk.streams", "out of range", "1 to 1000"},
	// Subjects.
	{"subject", with("subjects: [cubik]"), "8:12", "subjects[0]", `unknown subject "cubik"`, `"cubic"?`},
	{"unlike any subject", with("subjects: [mine]"), "8:12", "subjects[0]", `unknown subject "mine"`, "{name: mine, cc: mine}"},
	{"second subject", with("subjects: [bbr, bbr]"), "8:17", "subjects[1]", "a second subject", "another name"},
	{"no pods to connect", with("subjects: [{name: a, pods: veth}]"), "8:12", "subjects[0]", "the network has none", "{kind: pods}"},
	{"no way to connect pods", with("subjects: [{name: a, pods: wifi}]"), "8:28", "subjects[0].pods", "wifi", ""},
	{"plugin without a type", with("subjects: [{name: a, cni: [{mtu: 9000}]}]"), "8:28", "subjects[0].cni[0]", "without a type", "ptp"},
	{"of no kind", with("subjects: [{name: a}]"), "8:12", "subjects[0]", "want exactly one of", "incast-clamp"},
	{"of two kinds", with("subjects: [{name: a, begin: b, route: {initcwnd: 3}}]"), "8:12", "subjects[0]", "want exactly one of", ""},
	{"without name", with("subjects: [{cc: bbr}]"), "8:12", "subjects[0]", "a name has", ""},
	{"baseline", with("baseline: cubik"), "9:11", "baseline", `unknown subject "cubik"`, `"cubic"?`},
	{"metric", with("metrics: [goodput, retrnas]"), "9:20", "metrics[1]", `unknown metric "retrnas"`, `"retrans"?`},
	{"primary of no part", with("primary: bluk/rtt"), "9:10", "primary", "unknown part of the traffic", `"bulk"?`},

	// tcpilot's own configuration: mistakes are reported by the lines of this file.
	{"lab's key", with("subjects: [{name: a, tcpilot: {cgroup: /x}}]"), "8:40", "subjects[0].tcpilot.cgroup", "the lab sets cgroup", "remove"},
	{"field of tcpilot", with("subjects:\n  - cubic\n  - name: a\n    tcpilot:\n      rules:\n        - name: b\n          set:\n            init_cwn: 32"),
		"15:13", "subjects[1].tcpilot.rules[0].set", `unknown field "init_cwn"`, `"init_cwnd"?`},
	{"value of tcpilot", with("subjects: [{name: a, tcpilot: {rules: [{name: b, set: {init_cwnd: 0}}]}}]"),
		"8:67", "subjects[0].tcpilot.rules[0].set.init_cwnd", "out of range", ""},
}

func TestMistakes(t *testing.T) {
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			_, err := Read("a.yaml", []byte(m.file), Options{})
			var all yamlfile.Errors
			if !errors.As(err, &all) {
				t.Fatalf("%v is not a yamlfile.Errors, for\n%s", err, m.file)
			}
			for _, e := range all {
				if m.at == fmt.Sprintf("%d:%d", e.Line, e.Col) && e.Key == m.key &&
					strings.Contains(e.Problem, m.problem) && strings.Contains(e.Error(), m.fix) {
					if len(all) > 2 {
						t.Errorf("one mistake, but %d errors:\n%v", len(all), all)
					}
					return
				}
			}
			t.Errorf("want %s: %s: %s; %s\ngot %v", m.at, m.key, m.problem, m.fix, all)
		})
	}
}

// All mistakes are reported together, in the file's order, each once however many cases
// share it.
func TestAllMistakes(t *testing.T) {
	file := with("traffic: {bulk: {kind: bulk, duration: 1}}", "metrics: [speed]", "cases: [{name: a}, {name: b, cpu_bound: 1}, {name: c}]")
	_, err := Read("x.yaml", []byte(file), Options{Quick: true})
	want := []string{
		`x.yaml:7:40: traffic.bulk.duration: "1" has no unit; `,
		`x.yaml:9:11: metrics[0]: unknown metric "speed"; there are goodput, `,
		`x.yaml:10:41: cases[1].cpu_bound: "1" is neither true nor false; `,
	}
	got := strings.Split(fmt.Sprint(err), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d errors, want %d:\n%v", len(got), len(want), err)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got %s\nwant %s", got[i], want[i])
		}
	}
}

// No file, however broken, makes the reader panic.
func FuzzRead(f *testing.F) {
	for _, name := range Names() {
		data, err := Source(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, m := range mistakes {
		f.Add([]byte(m.file))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Read("x.yaml", data, Options{})
		if err == nil {
			if err := s.Describe(t.Output()); err != nil {
				t.Error(err)
			}
		} else if !errors.As(err, new(yamlfile.Errors)) {
			t.Errorf("%v is not a yamlfile.Errors", err)
		}
	})
}
