package daemon

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/kubeapi"
)

// aNode has networks, and addresses after "|".
func aNode(name, text string) kubeapi.Node {
	n := kubeapi.Node{Name: name}
	networks, addresses, _ := strings.Cut(text, "|")
	for p := range strings.FieldsSeq(networks) {
		n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(p))
	}
	for a := range strings.FieldsSeq(addresses) {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	return n
}

func TestPlanNodeRoutes(t *testing.T) {
	self := aNode("a", "10.1.0.0/24 fd00:1::/64 | 192.0.2.1 2001:db8::1")
	for _, c := range []struct {
		what           string
		nodes          []kubeapi.Node
		wanted, reason string
	}{
		{"alone", nil, "[]", ""},
		{"both families", []kubeapi.Node{aNode("b", "10.1.1.0/24 fd00:1:0:1::/64 | 192.0.2.2 2001:db8::2")},
			"[{b 10.1.1.0/24 192.0.2.2} {b fd00:1:0:1::/64 2001:db8::2}]", ""},
		{"the first address of a family", []kubeapi.Node{aNode("b", "10.1.1.0/24 | 2001:db8::2 192.0.2.2 192.0.2.3")}, "[{b 10.1.1.0/24 192.0.2.2}]", ""},
		{"no address of a family", []kubeapi.Node{aNode("b", "fd00:1:0:1::/64 10.1.1.0/24 | 192.0.2.2")}, "[{b 10.1.1.0/24 192.0.2.2}]", "no InternalIP"},
		{"no network yet", []kubeapi.Node{aNode("b", "| 192.0.2.2")}, "[]", ""},
		{"everything", []kubeapi.Node{aNode("b", "0.0.0.0/0 ::/0 | 192.0.2.2 2001:db8::2")}, "[]", "cannot be a network of pods"},
		{"loopback", []kubeapi.Node{aNode("b", "127.0.0.0/16 | 192.0.2.2")}, "[]", "cannot be a network of pods"},
		{"link-local", []kubeapi.Node{aNode("b", "fe80::/64 | 2001:db8::2")}, "[]", "cannot be a network of pods"},
		{"this node's pods", []kubeapi.Node{aNode("b", "10.1.0.128/25 | 192.0.2.2")}, "[]", "it overlaps 10.1.0.0/24 of node a"},
		{"another node's pods", []kubeapi.Node{aNode("b", "10.1.1.0/24 | 192.0.2.2"), aNode("c", "10.1.0.0/16 10.1.1.0/24 10.1.2.0/24 | 192.0.2.3")},
			"[{b 10.1.1.0/24 192.0.2.2} {c 10.1.2.0/24 192.0.2.3}]", "overlaps 10.1.0.0/24 of node a"},
		{"this node itself", []kubeapi.Node{aNode("b", "192.0.2.0/28 | 198.51.100.2")}, "[]", "it contains the address 192.0.2.1 of node a"},
		{"the way to it", []kubeapi.Node{aNode("b", "198.51.100.0/24 | 198.51.100.2")}, "[]", "it contains the address 198.51.100.2 of node b"},
	} {
		wanted, missing, err := planNodeRoutes("a", append([]kubeapi.Node{self}, c.nodes...))
		got := []string{}
		for _, w := range wanted {
			got = append(got, fmt.Sprintf("{%s %v %v}", w.node, w.network, w.gateway))
		}
		if err != nil || fmt.Sprint(got) != c.wanted {
			t.Errorf("%s: %v, %v; want %s", c.what, got, err, c.wanted)
		}
		if text := fmt.Sprint(missing); (c.reason == "") != (len(missing) == 0) || !strings.Contains(text, c.reason) {
			t.Errorf("%s: missing %s, want %q", c.what, text, c.reason)
		}
	}
	if _, _, err := planNodeRoutes("z", []kubeapi.Node{self}); err == nil || !strings.Contains(err.Error(), `no node "z"`) {
		t.Errorf("an unknown node: %v", err)
	}
}

func TestFeatureOfNodeRoutes(t *testing.T) {
	var n nodeRoutes
	if f := n.feature(); f.Active || !strings.Contains(f.Why, "not known yet") {
		t.Errorf("%+v", f)
	}
	n.shown.Store(&nodeRoutesView{made: 2})
	if f := n.feature(); !f.Active || f.Why != "" {
		t.Errorf("%+v", f)
	}
	v := &nodeRoutesView{made: 1}
	for i := range 7 {
		v.missing = append(v.missing, missingRoute{fmt.Sprint("n", i), netip.MustParsePrefix("10.1.1.0/24"), "x"})
	}
	n.shown.Store(v)
	if f := n.feature(); f.Active || !strings.HasPrefix(f.Why, "1 routes; none to 10.1.1.0/24 of node n0: x; ") || !strings.HasSuffix(f.Why, "; 2 more") {
		t.Errorf("%+v", f)
	}
}
