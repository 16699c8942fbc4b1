package policy

import (
	"strconv"
	"testing"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Describe names a rule in the messages of tests.
func (r *Rule) Describe() string { return r.Name + ": " + r.Match.String() + ": " + r.Action() }

// FormatValue writes the value of a field that has no unit.
func FormatValue(_ tcp.Field, v uint64) string { return strconv.FormatUint(v, 10) }

func TestMatchAndActionForPeople(t *testing.T) {
	cubic, bbr := tcp.CCOf("cubic"), tcp.CCOf("bbr")
	for _, c := range []struct {
		rule Rule
		want string
	}{
		{Rule{Name: "a", Leave: true, Match: Match{Remote: prefixes("127.0.0.0/8", "::1/128")}}, "a: remote 127.0.0.0/8|::1/128: leave"},
		{Rule{Name: "b", CC: bbr, Set: params(tcp.InitCwnd, 40), Match: Match{LocalPort: []PortRange{{443, 443}, {8000, 8100}}, Direction: Incoming}},
			"b: local port 443|8000-8100, incoming: set"},
		{Rule{Name: "c", Learn: &Learn{HoldOut: 0.02}}, "c: every connection: learn"},
		{Rule{Name: "d", Set: params(tcp.NoDelay, 1), Learn: &Learn{Arms: []tcp.CC{cubic, bbr}, Objective: learn.FCT, OwnScope: true},
			Match: Match{Cgroup: []string{"/a"}, NetNS: []string{"n"}, Same: Same{IPv4: 16, IPv6: 44}}},
			"d: cgroup /a, netns n, same prefix ipv6 /44|ipv4 /16: set+learn"},
		{Rule{Name: "e", Watch: Watch{class.WatchRTO | class.WatchState, 0.01}, Match: Match{RemotePort: []PortRange{{1, 2}}, Local: prefixes("10.0.0.0/8")}},
			"e: local 10.0.0.0/8, remote port 1-2: watch"},
		{Rule{Name: "f"}, "f: every connection: none"},
	} {
		if got := c.rule.Describe(); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}
