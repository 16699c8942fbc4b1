package policy

import (
	"reflect"
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestShadows(t *testing.T) {
	port := func(first, last uint16) []PortRange { return []PortRange{{first, last}} }
	for _, c := range []struct {
		name  string
		match []Match
		by    []int // of the last rule; nil is reachable
	}{
		{"same match", []Match{{Remote: prefixes("10.0.0.0/8")}, {Remote: prefixes("10.0.0.0/8")}}, []int{0}},
		{"inside a prefix", []Match{{Remote: prefixes("10.0.0.0/8")}, {Remote: prefixes("10.1.0.0/16"), LocalPort: port(1, 2)}}, []int{0}},
		{"around a prefix", []Match{{Remote: prefixes("10.1.0.0/16")}, {Remote: prefixes("10.0.0.0/8")}}, nil},
		{"after one for all", []Match{{}, {Direction: Incoming}}, []int{0}},
		{"one for all after others", []Match{{Direction: Incoming}, {}}, nil},
		{"both directions", []Match{{Direction: Incoming}, {Direction: Outgoing}, {LocalPort: port(80, 80)}}, []int{0, 1}},
		{"both directions, one narrower", []Match{{Direction: Incoming, LocalPort: port(1, 9)}, {Direction: Outgoing}, {}}, nil},
		{"both families", []Match{{Remote: prefixes("0.0.0.0/0")}, {Remote: prefixes("::/0")}, {}}, []int{0, 1}},
		{"two halves of a prefix", []Match{{Local: prefixes("10.0.0.0/9")}, {Local: prefixes("11.0.0.0/8")}, {Local: prefixes("10.128.0.0/9")},
			{Local: prefixes("10.0.0.0/8")}}, []int{0, 2}},
		{"three quarters of a prefix", []Match{{Local: prefixes("10.0.0.0/9")}, {Local: prefixes("10.128.0.0/10")}, {Local: prefixes("10.0.0.0/8")}}, nil},
		{"halves of single addresses", []Match{{Local: prefixes("::/128")}, {Local: prefixes("::1/128")}, {Local: prefixes("::/127")}}, []int{0, 1}},
		{"adjacent ports", []Match{{RemotePort: port(1, 99)}, {RemotePort: port(100, 200)}, {RemotePort: port(50, 150)}}, []int{0, 1}},
		{"ports with a gap", []Match{{RemotePort: port(1, 99)}, {RemotePort: port(101, 200)}, {RemotePort: port(50, 150)}}, nil},
		{"all ports", []Match{{RemotePort: port(0, 65535)}, {}}, []int{0}},
		{"cgroup below", []Match{{Cgroup: []string{"/a"}}, {Cgroup: []string{"/a/b", "/a"}}}, []int{0}},
		{"cgroup of like name", []Match{{Cgroup: []string{"/a"}}, {Cgroup: []string{"/ab"}}}, nil},
		{"cgroup root is not every socket", []Match{{Cgroup: []string{"/"}}, {}}, nil},
		{"netns", []Match{{NetNS: []string{"x", "y"}}, {NetNS: []string{"y"}}}, []int{0}},
		{"netns, one more", []Match{{NetNS: []string{"x"}}, {NetNS: []string{"x", "y"}}}, nil},
		{"shorter same prefix", []Match{{Same: Same{IPv6: 40}}, {Same: Same{IPv6: 44}}}, []int{0}},
		{"longer same prefix", []Match{{Same: Same{IPv6: 48}}, {Same: Same{IPv6: 44}}}, nil},
		{"same prefix by family", []Match{{Same: Same{IPv6: 44}}, {Same: Same{IPv4: 8}}, {Same: Same{IPv6: 48, IPv4: 16}}}, []int{0, 1}},
		{"same prefix of all", []Match{{Same: Same{IPv6: 1, IPv4: 1}}, {}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
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
				t.Errorf("got %v, want %v", by, c.by)
			}
		})
	}
}

func TestImpossible(t *testing.T) {
	for _, c := range []struct {
		name string
		m    Match
		want bool
	}{
		{"everything", Match{}, false},
		{"families meet", Match{Remote: prefixes("10.0.0.0/8", "fd00::/8"), Local: prefixes("fd00::/8")}, false},
		{"families differ", Match{Remote: prefixes("10.0.0.0/8"), Local: prefixes("fd00::/8")}, true},
		{"same prefix of the other family", Match{Remote: prefixes("10.0.0.0/8"), Same: Same{IPv6: 44}}, true},
		{"same prefix, one side known", Match{Remote: prefixes("10.0.0.0/8"), Same: Same{IPv4: 8}}, false},
		{"same prefix, far apart", Match{Remote: prefixes("10.0.0.0/8"), Local: prefixes("11.0.0.0/8"), Same: Same{IPv4: 8}}, true},
		{"same prefix, near enough", Match{Remote: prefixes("10.0.0.0/8"), Local: prefixes("11.0.0.0/8"), Same: Same{IPv4: 7}}, false},
		{"same prefix, one family far apart", Match{Remote: prefixes("10.0.0.0/8", "fd00::/8"), Local: prefixes("11.0.0.0/8", "fd00::/16"), Same: Same{IPv4: 8, IPv6: 44}}, false},
	} {
		if why := c.m.Impossible(); (why != "") != c.want {
			t.Errorf("%s: got %q, want impossible: %v", c.name, why, c.want)
		}
	}
}

func TestCannotApply(t *testing.T) {
	for _, c := range []struct {
		f    tcp.Field
		m    Match
		want bool
	}{
		{tcp.SynRTO, Match{Direction: Incoming}, true},
		{tcp.SynRTO, Match{}, false},
		{tcp.SynAckRTO, Match{Direction: Outgoing}, true},
		{tcp.SynAckRTO, Match{Direction: Incoming}, false},
		{tcp.TOS, Match{Remote: prefixes("fd00::/8")}, true},
		{tcp.TClass, Match{Remote: prefixes("10.0.0.0/8")}, true},
		{tcp.TClass, Match{Remote: prefixes("10.0.0.0/8", "fd00::/8")}, false},
		{tcp.Sndbuf, Match{Direction: Outgoing}, false},
	} {
		if why := c.m.CannotApply(c.f); (why != "") != c.want {
			t.Errorf("%s on %s: got %q, want refused: %v", c.f, c.m.String(), why, c.want)
		}
	}
}
