package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// rule wraps the lines of one rule's body: its first line is line 3.
func rule(lines ...string) string {
	return "rules:\n- name: a\n  " + strings.Join(lines, "\n  ") + "\n"
}

// Each mistake is reported with its position, what is wrong, and what to do.
var mistakes = []struct{ name, file, at, problem, fix string }{
	// The form of the file.
	{"no YAML", "log: [\n", "1:6", "not YAML", "correct the YAML"},
	{"tab", "log:\n\tlevel: info\n", "2:1", "not YAML", ""},
	{"colon first in flow", rule("match: {remote: [::1/128, 10.0.0.0/8]}"), "3:20", "not YAML", `["::1/128"]`},
	{"no mapping", "- a\n", "1:1", "want key: value entries, found a list", ""},
	{"a word", "hello\n", "1:1", "want key: value entries, found a single value", ""},
	{"not text", "log:\n  level: \x00info\n", "2:10", "not text", "remove it"},
	{"no UTF-8", "log:\n  level: \xffinfo\n", "2:10", "not text", "remove it"},
	{"two documents", "interval: 5s\n---\ninterval: 6s\n", "3:1", "second document", "remove the ---"},
	{"deep brackets", strings.Repeat("[", 10000), "1:33", "more than 32 levels", "close the brackets"},
	{"deep dashes", strings.Repeat("- ", 10000), "1:65", "more than 32 levels", ""},
	{"anchor", "interval: &x 5s\n", "1:11", "anchors", "write the value out"},
	{"alias", "log: {level: info}\ninterval: *x\n", "2:11", "aliases", "write the value out"},
	{"tag", "interval: !!str 5s\n", "1:11", "tags", "write the value out"},
	{"text block", "cgroup: |\n  /a\n", "1:9", "text blocks", "write the value out"},
	{"merge key", "log:\n  <<: {level: info}\n", "2:3", "merge keys", "write the entries out"},
	{"section is a value", "log: info\n", "1:6", "want key: value entries, found a single value", ""},
	{"value is a list", "interval: [5s]\n", "1:11", "want a single value, found a list", "write one value"},
	{"value is a section", "interval: {a: b}\n", "1:11", "want a single value, found key: value entries", ""},
	{"no value", "log:\n  level:\n", "2:3", "has no value", "remove the key"},
	{"empty element", "rules:\n- name: a\n  leave: true\n  match: {remote: [~]}\n", "4:20", "a value is missing", "write one"},
	{"rules is no list", "rules: {name: a}\n", "1:8", "want a list, found key: value entries", `"- "`},

	// Keys.
	{"unknown key", "metrix:\n  listen: \"\"\n", "1:1", `unknown key "metrix"`, `did you mean "metrics"?`},
	{"unknown key inside", "learning:\n  paths:\n    ipv5: 24\n", "3:5", `unknown key "ipv5"`, `did you mean "ipv4"?`},
	{"swapped letters", "learning: {laese: 10s}\n", "1:12", `unknown key "laese"`, `did you mean "lease"?`},
	{"dash for underscore", "learning: {hold-out: 1%}\n", "1:12", `unknown key "hold-out"`, `did you mean "hold_out"?`},
	{"unlike any key", "frobnicate: 1\n", "1:1", `unknown key "frobnicate"`, "docs/config.md"},
	{"number as key", "1: x\n", "1:1", `unknown key "1"`, "docs/config.md"},
	{"key of another form", "? a\n: b\n", "1:1", "the key is not a plain word", ""},
	{"duplicate key", "interval: 5s\nlog: {level: info}\ninterval: 6s\n", "3:1", "already in line 1", "remove one"},
	{"duplicate field", rule("set:", "  init_cwnd: 10", "  ecn: true", "  init_cwnd: 20"), "6:5", "already in line 4", "remove one"},
	{"field outside set", rule("init_cwnd: 40"), "3:3", `unknown key "init_cwnd"`, "put it under set: set: {init_cwnd: ...}"},
	{"cc outside set", rule("cc: bbr"), "3:3", `unknown key "cc"`, "put it under set"},
	{"condition outside match", rule("remote_port: 443", "leave: true"), "3:3", `unknown key "remote_port"`, "put it under match"},
	{"arms outside learn", rule("arms: auto"), "3:3", `unknown key "arms"`, "put it under learn"},
	{"unknown field", rule("set: {init_cwn: 40}"), "3:9", `unknown field "init_cwn"`, `did you mean "init_cwnd"?`},
	{"unlike any field", rule("set: {speed: 40}"), "3:9", `unknown field "speed"`, "docs/config.md"},
	{"field without value", rule("set: {ecn: }"), "3:9", "no value", "leave it to the kernel"},

	// Values.
	{"no unit", "interval: 5\n", "1:11", `"5" has no unit`, "did you mean 5ms or 5s? write a duration such as 10ms"},
	{"wrong unit", "interval: 5KiB\n", "1:11", "not a duration", "units: us ms s m h"},
	{"negative", "interval: -5s\n", "1:11", "negative", ""},
	{"duration too short", "learning:\n  lease: 1s\n", "2:10", "1s is out of range", "write 2s to 5m"},
	{"duration too long, or off", "interval: 11m\n", "1:11", "out of range", "write 1s to 10m, or 0 for off"},
	{"number too large", "metrics: {top_paths: 10001}\n", "1:22", "10001 is out of range", "write 0 to 10000"},
	{"no number", "metrics: {top_paths: many}\n", "1:22", "not a whole number", ""},
	{"leading zero", "metrics: {top_paths: 010}\n", "1:22", "leading zero", "without"},
	{"share too large", "learning: {hold_out: 60%}\n", "1:22", "60% is out of range", "write 0% to 50%"},
	{"share without percent", "learning: {hold_out: 2}\n", "1:22", "more than 100%", "did you mean 2%?"},
	{"no share", "learning: {hold_out: little}\n", "1:22", "not a share", "2% or 0.02"},
	{"unknown word", "log: {level: inf}\n", "1:14", `"inf" is not one of the choices`, `did you mean "info"?`},
	{"no bool", "builtin_rules: yes\n", "1:16", "neither true nor false", "write true or false"},
	{"mode", "socket: {mode: 660}\n", "1:16", "not a file mode", "0660"},
	{"executable mode", "socket: {mode: 0755}\n", "1:16", "is not a mode for a socket", "0660"},
	{"relative path", "run_dir: run\n", "1:10", "not a clean absolute path", ""},
	{"group", "socket: {group: \"a b\"}\n", "1:17", "not a group", ""},
	{"listen without port", "metrics: {listen: 127.0.0.1}\n", "1:19", "not address:port", "127.0.0.1:9732"},
	{"listen port", "metrics: {listen: \"127.0.0.1:99999\"}\n", "1:19", "no usable port", ""},
	{"listen host", "metrics: {listen: \"example:9732\"}\n", "1:19", "IP address", ""},
	{"ttl below lease", "learning:\n  lease: 1m\n  policy_ttl: 30s\n", "3:15", "30s is shorter than learning.lease, 1m", "at least"},
	{"node_routes without an API server", "pods:\n  node_routes: on\n", "2:16", "no API server is configured", "pods.kubernetes"},
	{"override longer than address", "learning: {paths: {overrides: [{prefix: 10.0.0.0/8, bits: 33}]}}\n", "1:59", "33 does not fit 10.0.0.0/8", "write 8 to 32"},
	{"override shorter than prefix", "learning: {paths: {overrides: [{prefix: 10.0.0.0/8, bits: 7}]}}\n", "1:59", "7 does not fit", "write 8 to 32"},
	{"override half", "learning: {paths: {overrides: [{prefix: 10.0.0.0/8}]}}\n", "1:32", "missing", "write both"},
	{"override twice", "learning:\n  paths:\n    overrides:\n    - {prefix: 10.0.0.0/8, bits: 16}\n    - {prefix: 10.0.0.0/8, bits: 18}\n", "5:16", "is in the list twice", "remove one"},

	// Fields.
	{"field too large", rule("set:", "  init_cwnd: 4000"), "4:16", "4000 is out of range", "write 1 to 1000 packets"},
	{"field too small", rule("set: {rto_min: 10us}"), "3:18", "10us is out of range", "write 1ms to 200ms"},
	{"bytes too small", rule("set: {sndbuf: 2KiB}"), "3:17", "2KiB is out of range", "write 2304B to 1073741823B"},
	{"duration for packets", rule("set: {init_cwnd: 10ms}"), "3:20", "not a number of packets", "whole number"},
	{"size for duration", rule("set: {syn_rto: 10KiB}"), "3:18", "not a duration", "units"},
	{"duration for size", rule("set: {sndbuf: 10ms}"), "3:17", `unknown unit "ms"`, "KiB"},
	{"size for rate", rule("set: {max_pacing_rate: 100MB}"), "3:26", "unknown unit", "did you mean 100MB/s?"},
	{"bits per second of another tool", rule("set: {max_pacing_rate: 100Mbps}"), "3:26", "unknown unit", "did you mean 100Mbit/s?"},
	{"unit of another tool", rule("set: {sndbuf: 64KB}"), "3:17", `unknown unit "KB"`, "did you mean 64"},
	{"size without unit", rule("set: {sndbuf: 150000}"), "3:17", `"150000" has no unit`, "did you mean 150000B?"},
	{"duration without unit", rule("set: {syn_rto: 1}"), "3:18", `"1" has no unit`, "did you mean 1ms or 1s?"},
	{"rate without unit", rule("set: {max_pacing_rate: 1000000}"), "3:26", `"1000000" has no unit`, "did you mean 1000000B/s"},
	{"prefix for unit", rule("set: {sndbuf: 64k}"), "3:17", `unknown unit "k"`, "did you mean 64kB (64000 bytes) or 64KiB (65536 bytes)?"},
	{"one without percent", rule("watch: {events: rto, share: 1}"), "3:31", "1 is ambiguous: 1% or 100%", "write 1% or 100%"},
	{"half a byte", rule("set: {sndbuf: 4000.5B}"), "3:17", "not a whole number of bytes", "write a value that is a whole number"},
	{"half a tick", rule("set: {syn_rto: 1500us}"), "3:18", "not a whole number of ms", "round"},
	{"number for bool", rule("set: {ecn: 1}"), "3:14", "neither true nor false", "write true or false"},
	{"cc name", rule("set: {cc: averyveryverylongname}"), "3:13", "cannot be a congestion control", "15"},

	// Congestion controls of tcpilot's own.
	{"unknown control", "congestion_controls: [tcpilot_bbr3, tcpilot_cubik]\n", "1:37", `"tcpilot_cubik" is not one of tcpilot's own`, `did you mean "tcpilot_cubic"?`},
	{"control by its short name", "congestion_controls: bbr3\n", "1:22", `"bbr3" is not one`, `did you mean "tcpilot_bbr3"?`},
	{"control of the kernel", "congestion_controls: [htcp]\n", "1:23", `"htcp" is not one`, "tcpilot_bbr3, "},
	{"control twice", "congestion_controls: [tcpilot_bbr3, tcpilot_bbr3]\n", "1:37", "is in the list twice", "remove one"},
	{"control and auto", "congestion_controls: [tcpilot_bbr3, auto]\n", "1:37", `"auto" is not one`, "tcpilot_bbr3, "},
	{"no controls", "congestion_controls: []\n", "1:22", "list is empty", ""},
	{"unknown control in set", rule("set: {cc: tcpilot_bbr}"), "3:13", `"tcpilot_bbr" is not one of tcpilot's own`, `did you mean "tcpilot_bbr3"?`},
	{"unknown control among arms", rule("learn: {arms: [cubic, tcpilot_vegas]}"), "3:25", `"tcpilot_vegas" is not one`, "tcpilot_bbr3, "},
	{"control in set is not loaded", "congestion_controls: none\n" + rule("set: {cc: tcpilot_bbr3}"), "4:9", "tcpilot_bbr3 is not loaded", "congestion_controls: auto"},
	{"arm is not loaded", "congestion_controls: [tcpilot_bbr3]\n" + rule("learn: {arms: [tcpilot_bbr3, tcpilot_cubic]}"), "4:32", "tcpilot_cubic is not loaded", "add it there"},

	// Rules.
	{"no CIDR", rule("match: {remote: 10.0.0.0/33}", "leave: true"), "3:19", "not a prefix (CIDR)", "10.0.0.0/8"},
	{"a name for an address", rule("match:", "  remote:", "  - 10.0.0.0/8", "  - example.org", "leave: true"), "6:7", "not a prefix (CIDR)", ""},
	{"host bits", rule("match: {remote: 10.1.2.3/8}", "leave: true"), "3:19", "bits set beyond its prefix length", "write 10.0.0.0/8, or 10.1.2.3/32"},
	{"v4-mapped", rule("match: {remote: \"::ffff:10.0.0.0/104\"}", "leave: true"), "3:19", "v4-mapped", "IPv4"},
	{"port word", rule("match: {remote_port: https}", "leave: true"), "3:24", "not a port", "443"},
	{"port zero", rule("match: {remote_port: 0}", "leave: true"), "3:24", "out of range", "1 to 65535"},
	{"port too large", rule("match: {remote_port: [80, 70000]}", "leave: true"), "3:29", "out of range", "1 to 65535"},
	{"empty port range", rule("match: {remote_port: 8100-8000}", "leave: true"), "3:24", "empty range", "write 8000-8100"},
	{"empty list", rule("match: {remote: []}", "leave: true"), "3:19", "list is empty", "remove the key"},
	{"cgroup pattern", rule("match: {cgroup: '/a/[b'}", "leave: true"), "3:19", "not a pattern of cgroup paths", "close the ["},
	{"cgroup path", rule("match: {cgroup: system.slice}", "leave: true"), "3:19", "not a cgroup path", "/system.slice"},
	{"netns", rule("match: {netns: \"a b\"}", "leave: true"), "3:18", "not a network namespace", ""},
	{"pod of a bad pattern", rule("match: {pod: {name: [web-1, \"web-[\"]}}", "leave: true"), "3:31", `"web-[" is not a pattern`, "web-*"},
	{"pod with a slash", rule("match: {pod: {name: shop/web}}", "leave: true"), "3:23", "has a /", "{namespace: shop, name: web-*}"},
	{"pod of an empty name", rule("match: {pod: {namespace: \"\"}}", "leave: true"), "3:28", "pattern is empty", "web-*"},
	{"pod of a word", rule("match: {pod: web}", "leave: true"), "3:16", "want key: value entries", "{ }"},
	{"pod by labels", rule("match: {pod: {label: web}}", "leave: true"), "3:17", `unknown key "label"`, "docs/config.md"},
	{"pod's annotation of a bad pattern", rule("match: {pod: {annotation: {a/b: \"x\\\\\"}}}", "leave: true"), "3:35", "is not a pattern", "web-*"},
	{"pod's annotation without a value", rule("match: {pod: {annotation: {a/b: }}}", "leave: true"), "3:30", "no value", ""},
	{"pod's annotations of nothing", rule("match: {pod: {annotation: {}}}", "leave: true"), "3:29", "no name is given", "tcpilot.io/profile"},
	{"pod's annotation as a word", rule("match: {pod: {annotation: bulk}}", "leave: true"), "3:29", "want key: value entries", ""},
	{"pod at the rule's top level", rule("pod: {name: web}", "leave: true"), "3:3", `unknown key "pod"`, "put it under match"},
	{"pod after more pods", "rules:\n- name: a\n  match: {pod: {namespace: shop}}\n  leave: true\n- name: b\n  match: {pod: {namespace: shop, name: web}}\n  leave: true\n", "5:3", "can never match", ""},
	{"direction", rule("match: {direction: out}", "leave: true"), "3:22", "not one of the choices", "outgoing or incoming"},
	{"same prefix too long", rule("match: {same_prefix: {ipv4: 33}}", "leave: true"), "3:31", "33 is out of range", "1 to 32"},
	{"same prefix of nothing", rule("match: {same_prefix: {}}", "leave: true"), "3:24", "no family", "{ipv6: 44"},
	{"no name", "rules:\n- leave: true\n", "2:3", "the rule has no name", "add name"},
	{"bad name", "rules:\n- name: a b\n  leave: true\n", "2:9", "cannot be a name", "letters"},
	{"same name", "rules:\n- name: a\n  match: {remote_port: 1}\n  leave: true\n- name: a\n  leave: true\n", "5:9", `"a" is the name of the rule in line 2`, "its own name"},
	{"watches nothing", rule("watch: {events: [rto], share: 0}"), "3:33", "0 is out of range", "write 0.01% to 100%"},
	{"name of no rule", "rules:\n- name: none\n  leave: true\n", "2:9", `"none" is what metrics call connections that no rule matches`, "its own name"},
	{"name of removed rules", "rules:\n- name: removed\n  leave: true\n", "2:9", "of rules that were removed", "its own name"},
	{"name of a built-in rule", "rules:\n- name: loopback\n  leave: true\n", "2:9", "built-in", "its own name"},
	{"empty rate limit", rule("rate_limit: {}"), "3:15", "no rate is named", "total: 100Mbit/s"},
	{"rate limit too low", rule("rate_limit: {total: 1kbit/s}"), "3:23", "", "100kbit/s"},
	{"rate limit of one above that of all", rule("rate_limit: {total: 10Mbit/s, connection: 20Mbit/s}"), "3:45", "one connection may have more than all together", "lower it"},
	{"rate limit and leave", rule("leave: true", "rate_limit: {total: 10Mbit/s}"), "4:15", "leave: true as well", "remove one"},
	{"total at the rule's top level", rule("total: 10Mbit/s"), "3:3", "", "put it under rate_limit"},
	{"no action", rule("match: {remote_port: 1}"), "2:3", "the rule does nothing", "add set, learn, rate_limit, on_rto, watch, or leave: true"},
	{"leave false alone", rule("leave: false"), "2:3", "the rule does nothing", "leave: true"},
	{"leave and set", rule("leave: true", "set: {ecn: true}"), "4:8", "leave: true as well", "remove one"},
	{"leave and learn", rule("leave: true", "learn: {}"), "4:10", "leave: true as well", "remove one"},
	{"leave and watch", rule("leave: true", "watch: {events: rto}"), "4:10", "leave: true as well", "remove one"},
	{"leave and rollout", rule("leave: true", "rollout: 10%"), "4:12", "leave: true as well", "remove one"},
	{"leave and adapt", rule("leave: true", "adapt: auto"), "4:10", "leave: true as well", "remove one"},
	{"adapt without learn", rule("set: {ecn: true}", "adapt: auto"), "4:10", "learns nothing", "add learn: {}"},
	{"adapt unknown", rule("learn: {}", "adapt: syn_rot"), "4:10", `"syn_rot" is not one of the choices`, "syn_rto"},
	{"adapt auto and more", rule("learn: {}", "adapt: [auto, syn_rto]"), "4:10", "cannot be combined", "names of fields only"},
	{"adapt default and more", rule("learn: {}", "adapt: [default, rto_min]"), "4:10", "cannot be combined", "names of fields only"},
	{"adapt what is set", rule("learn: {}", "adapt: [syn_rto]", "set: {syn_rto: 10ms}"), "4:10", "sets syn_rto as well", "remove it"},
	{"adapt beside syn_count", rule("learn: {}", "adapt: [syn_rto]", "set: {syn_count: 3}"), "4:10", "sets syn_count", "remove one"},
	{"adapt beside a rate limit", rule("learn: {}", "adapt: [max_pacing_rate]", "rate_limit: {total: 1Mbit/s}"), "4:10", "would hide the rate limit of a policer", "remove one"},
	{"adapt twice", rule("learn: {}", "adapt: [syn_rto, syn_rto]"), "4:10", "twice", "remove one"},
	{"a bound of what is not adapted", rule("learn: {}", "adapt: [syn_rto]", "adapt_bounds: {init_cwnd: 32}"), "5:29", "does not adapt init_cwnd", "add it to adapt"},
	{"a bound of rates without unit", rule("learn: {}", "adapt: auto", "adapt_bounds: {max_pacing_rate: 125000}"), "5:35", "has no unit", "bit/s"},
	{"a bound of rates out of range", rule("learn: {}", "adapt: auto", "adapt_bounds: {max_pacing_rate: 1kbit/s}"), "5:35", "out of range", "100kbit/s to 34Gbit/s"},
	{"a bound without unit", rule("learn: {}", "adapt: auto", "adapt_bounds: {syn_rto: 250}"), "5:27", "has no unit", "ms"},
	{"adapt in the wrong direction", rule("learn: {}", "adapt: [synack_rto]", "match: {direction: outgoing}"), "4:10", "incoming connections only", "widen the match"},
	{"rollout of nothing", rule("watch: {events: rto}", "rollout: 10%"), "4:12", "nothing that could be rolled out", "add set or learn"},
	{"rollout of one", rule("learn: {}", "rollout: 1"), "4:12", "1 is ambiguous: 1% or 100%", "write 1% or 100%"},
	{"rollout to nobody", rule("learn: {}", "rollout: 0%"), "4:12", "0% is out of range", "write 0.1% to 100%"},
	{"mode word", "mode: watch\n", "1:7", `"watch" is not one of the choices`, "write tune or observe"},
	{"cc and learn", rule("set: {ecn: true, cc: bbr}", "learn: {}"), "3:20", "leaves nothing to learn", "remove cc"},
	{"empty set", rule("set: {}"), "3:8", "no field is named", "name one"},
	{"unknown sysctl", "host: {sysctls: {net.ipv4.tcp_comp_sack: 1}}\n", "1:18", "unknown sysctl", "docs/host-profile.md"},
	{"sysctl out of range", "host: {sysctls: {net.ipv4.tcp_comp_sack_nr: 256}}\n", "1:45", "256 is out of range", "write 0 to 255"},
	{"sysctl with a unit", "host: {sysctls: {net.ipv4.tcp_comp_sack_delay_ns: 1ms}}\n", "1:51", "not a whole number", "bare whole number"},
	{"no sysctl", "host: {sysctls: {}}\n", "1:17", "no sysctl is named", "remove the key"},
	{"namespaces of the host profile", "host: {netns: some}\n", "1:15", "not one of the choices", "own or all"},
	{"on_rto without cc", rule("on_rto: {after: 2}"), "3:11", "no congestion control", "add cc:"},
	{"on_rto after none", rule("on_rto: {cc: bbr, after: 0}"), "3:28", "0 is out of range", "write 1 to 100"},
	{"leave and on_rto", rule("leave: true", "on_rto: {cc: bbr}"), "4:11", "leave: true as well", "remove one"},
	{"on_rto, not loaded", "congestion_controls: none\n" + rule("on_rto: {cc: tcpilot_bbr3}"), "4:16", "is not loaded", "add it there"},
	{"on_rto with ECN", rule("on_rto: {cc: dctcp}"), "3:16", "dctcp needs ECN", "bbr"},
	{"no events", rule("watch: {share: 1%}"), "3:10", "no events", "add events"},
	{"unknown event", rule("watch: {events: [rto, rt]}"), "3:25", "not one of the choices", "rto"},
	{"nine arms", rule("learn: {arms: [a, b, c, d, e, f, g, h, i]}"), "3:42", "9 arms", "at most 8"},
	{"arm twice", rule("learn: {arms: [cubic, bbr, cubic]}"), "3:30", "cubic is in the list twice", "remove one"},
	{"auto among arms", rule("learn: {arms: [auto, bbr]}"), "3:17", "auto cannot be combined with names", "names only"},
	{"no arms", rule("learn: {arms: []}"), "3:17", "list is empty", ""},
	{"objective", rule("learn: {objective: speed}"), "3:22", "not one of the choices", "throughput, latency, fct or realtime"},

	// Rules that never match, fields that never act.
	{"families", rule("match: {remote: 10.0.0.0/8, local: \"fd00::/8\"}", "leave: true"), "3:10", "can never match", "correct the match"},
	{"same prefix and family", rule("match:", "  remote: 10.0.0.0/8", "  same_prefix: {ipv6: 44}", "leave: true"), "4:5", "can never match", ""},
	{"SYN of incoming", rule("match: {direction: incoming}", "set: {syn_rto: 10ms}"), "4:9", "acts on outgoing connections only", "widen the match"},
	{"TOS of IPv6", rule("match: {remote: \"fd00::/8\"}", "set: {tos: 8}"), "4:9", "acts on IPv4 only", ""},
	{"shadowed", rule("match: {remote: 10.0.0.0/8}", "leave: true") + "- name: b\n  match: {remote: 10.1.0.0/16}\n  leave: true\n", "5:3",
		`rule "b" can never match: every connection that it matches is already matched by rule "a" in line 2`, "move it before that one"},
	{"shadowed by two", rule("match: {direction: incoming}", "leave: true") +
		"- name: b\n  match: {direction: outgoing}\n  leave: true\n- name: c\n  leave: true\n", "8:3",
		`rule "a" in line 2 and rule "b" in line 5`, "move it before them"},
	{"shadowed by a built-in rule", rule("match: {remote: 127.1.0.0/16}", "leave: true"), "2:3", `built-in rule "loopback"`, "builtin_rules: false"},
	{"behind the metrics port", "metrics: {listen: \"127.0.0.1:9000\"}\n" + rule("match: {local_port: 9000}", "leave: true"), "3:3", `built-in rule "own-traffic"`, "builtin_rules: false"},
}

func TestMistakes(t *testing.T) {
	for _, c := range mistakes {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := Parse("tcpilot.yaml", []byte(c.file))
			var list yamlfile.Errors
			if !errors.As(err, &list) || cfg != nil {
				t.Fatalf("want a mistake, got %v, %v", cfg, err)
			}
			if len(list) != 1 {
				t.Errorf("want one mistake, got %d:\n%v", len(list), err)
			}
			if prefix := "tcpilot.yaml:" + c.at + ": "; !strings.HasPrefix(err.Error(), prefix) {
				t.Errorf("want %s\n got %v", prefix, err)
			}
			if !strings.Contains(list[0].Problem, c.problem) || !strings.Contains(list[0].WhatToDo, c.fix) || list[0].WhatToDo == "" {
				t.Errorf("want problem %q and what to do %q\n got %v", c.problem, c.fix, err)
			}
		})
	}
}

func TestAllMistakesAreReportedInOrder(t *testing.T) {
	_, err := Parse("f", []byte(strings.Join([]string{
		"interval: 5",
		"rules:",
		"- name: a",
		"  match: {remote: [10.0.0.1/8, 10.0.0.0/99], remote_port: 0}",
		"  set: {init_cwnd: 0, ecn: maybe}",
		"- name: a",
		"  leave: true",
		"  colour: red",
		"frobnicate: 1",
	}, "\n")))
	want := []string{"f:1:11: interval", "f:4:20: rules[0].match.remote[0]", "f:4:32: rules[0].match.remote[1]",
		"f:4:59: rules[0].match.remote_port", "f:5:20: rules[0].set.init_cwnd", "f:5:28: rules[0].set.ecn",
		"f:6:9: rules[1].name", "f:8:3: rules[1]", "f:9:1: unknown key"}
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != len(want) {
		t.Fatalf("want %d mistakes, got %d:\n%v", len(want), len(lines), err)
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, want[i]) {
			t.Errorf("mistake %d: want %s...\n got %s", i, want[i], line)
		}
	}
	var one *yamlfile.Error
	if !errors.As(err, &one) || one.Line != 1 || !isMistake(err) {
		t.Errorf("errors.As finds %v", one)
	}
}

func TestTooManyRules(t *testing.T) {
	var b strings.Builder
	b.WriteString("rules:\n")
	for i := range 255 {
		fmt.Fprintf(&b, "- name: r%d\n  match: {remote_port: %d}\n  leave: true\n", i, i+1)
	}
	_, err := Parse("f", []byte(b.String()))
	if want := "f:764:3: rules[254]: 257 rules, of which 2 are built in; keep at most 254"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("want %s\n got %v", want, err)
	}
	cfg, err := Parse("f", []byte("builtin_rules: false\n"+b.String()))
	if err != nil || len(cfg.Rules) != 255 {
		t.Errorf("255 rules of one's own: %v", err)
	}
}

func TestTooManySamePrefixes(t *testing.T) {
	var b strings.Builder
	b.WriteString("rules:\n")
	for i := range 9 {
		fmt.Fprintf(&b, "- name: r%d\n  match: {same_prefix: {ipv6: %d}}\n  leave: true\n", i, 60-i)
	}
	_, err := Parse("f", []byte(b.String()))
	if want := "f:27:24: rules[8].match.same_prefix: more than 8 different prefix lengths"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("want %s\n got %v", want, err)
	}
}

func TestTooManyPrefixesAndPorts(t *testing.T) {
	for want, entry := range map[string]func(int) string{
		"f:4:10: rules[0].match: with this rule there are more than 8190 remote prefixes": func(n int) string {
			return fmt.Sprintf("10.%d.%d.0/24", n>>8, n&255)
		},
		"f:4:10: rules[0].match: with this rule there are more than 256 local port ranges": func(n int) string { return fmt.Sprint(2*n + 1) },
	} {
		key := "remote"
		if strings.Contains(want, "port") {
			key = "local_port"
		}
		var list []string
		for n := range 9000 {
			list = append(list, entry(n))
		}
		_, err := Parse("f", []byte("rules:\n- name: a\n  leave: true\n  match: {"+key+": ["+strings.Join(list, ", ")+"]}\n"))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("want %s\n got %.300v", want, err)
		}
	}
}

// isMistake reports whether err lists mistakes in a file, rather than that it could not
// be read.
func isMistake(err error) bool {
	var list yamlfile.Errors
	return errors.As(err, &list)
}

func TestLoad(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) || isMistake(err) {
		t.Errorf("missing file: %v", err)
	}
	name := filepath.Join(t.TempDir(), "tcpilot.yaml")
	write := func(data string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("interval: 7s\n")
	if cfg, err := Load(name); err != nil || cfg.Interval.Seconds() != 7 {
		t.Errorf("got %v, %v", cfg, err)
	}
	write("interval: x\n")
	if _, err := Load(name); !isMistake(err) || !strings.HasPrefix(err.Error(), name+":1:11: ") {
		t.Errorf("got %v", err)
	}
	write("#" + strings.Repeat("x", MaxFile))
	if _, err := Load(name); !isMistake(err) {
		t.Errorf("huge file: %v", err)
	}
}
