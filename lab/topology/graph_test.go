package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// ring has two equally long paths from the sender to the receiver.
var ring = Graph{
	Nodes: []Node{{"s", Sender}, {"a", Router}, {"b", Router}, {"c", Router}, {"d", Router}, {"r", Receiver}},
	Edges: []Edge{{"s", "s", "a"}, {"ab", "a", "b"}, {"ac", "a", "c"}, {"cd", "c", "d"}, {"bd", "b", "d"}, {"r", "d", "r"}},
}

func TestConstructors(t *testing.T) {
	for _, tc := range []struct {
		name         string
		graph        Graph
		nodes, links string
	}{
		{"dumbbell", Dumbbell(2, 1), "sender1 sender2 left right receiver1", "sender1 sender2 bottleneck receiver1"},
		{"incast", Incast(3), "sender1 sender2 sender3 switch receiver1", "sender1 sender2 sender3 bottleneck"},
		{"chain", Chain(3), "sender1 router1 router2 receiver1", "hop1 hop2 hop3"},
		{"wire", Chain(1), "sender1 receiver1", "hop1"},
		{"gateway", Gateway(2), "sender1 gateway receiver1 receiver2", "access path1 path2"},
		{"pods", Pods(), "sender1 node1 receiver1", ""},
		{"pods of two nodes", PodsOfTwo(), "sender1 node1 node2 receiver1", "wire"},
		{"a pod that serves", PodServer(), "sender1 node1 receiver1", "wire"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.graph.Check(); err != nil {
				t.Fatal(err)
			}
			var nodes, links []string
			for _, n := range tc.graph.Nodes {
				nodes = append(nodes, n.Name)
			}
			for _, e := range tc.graph.Edges {
				links = append(links, e.Name)
			}
			if got := strings.Join(nodes, " "); got != tc.nodes {
				t.Errorf("nodes %s, want %s", got, tc.nodes)
			}
			if got := strings.Join(links, " "); got != tc.links {
				t.Errorf("links %s, want %s", got, tc.links)
			}
		})
	}
}

func TestCheckReportsMistakes(t *testing.T) {
	two := []Node{{"s", Sender}, {"r", Receiver}}
	hub := append(slices.Clone(two), Node{"hub", Router})
	wire := Edge{"w", "s", "r"}
	for _, tc := range []struct {
		name string
		g    Graph
		want string
	}{
		{"nothing", Graph{}, "0 senders"},
		{"no receiver", Graph{Nodes: two[:1]}, "0 receivers"},
		{"no name", Graph{Nodes: []Node{{"", Sender}}}, `""`},
		{"long name", Graph{Nodes: []Node{{"a-name-too-long-", Sender}}}, "a-name-too-long-"},
		{"path for a name", Graph{Nodes: []Node{{"../x", Sender}}}, "../x"},
		{"reserved name", Graph{Nodes: two, Edges: []Edge{{"all", "s", "r"}}}, `link "all"`},
		{"same node", Graph{Nodes: []Node{{"s", Sender}, {"s", Receiver}}}, "node s is defined twice"},
		{"no role", Graph{Nodes: []Node{{"s", "server"}}}, `unknown role "server"`},
		{"unknown node", Graph{Nodes: two, Edges: []Edge{{"w", "s", "x"}}}, `link w: there is no node "x"`},
		{"same link", Graph{Nodes: two, Edges: []Edge{wire, wire}}, "link w is defined twice"},
		{"loop", Graph{Nodes: two, Edges: []Edge{{"w", "s", "s"}}}, "connects s to itself"},
		{"no links", Graph{Nodes: two}, "sender s has 0 links"},
		{"disconnected", Graph{Nodes: append(slices.Clone(two), Node{"s2", Sender}, Node{"r2", Receiver}),
			Edges: []Edge{wire, {"w2", "s2", "r2"}}}, "from s to s2"},
		{"lonely router", Graph{Nodes: hub, Edges: []Edge{wire}}, "to hub"},
		{"two links", Graph{Nodes: hub, Edges: []Edge{{"1", "s", "hub"}, {"2", "s", "hub"}, {"3", "hub", "r"}}}, "sender s has 2 links"},
		{"pod with a link", Graph{Nodes: two, Edges: []Edge{wire}, Pods: []Place{{"s", "hub"}}}, `node "hub" is no router`},
		{"linked pod", Graph{Nodes: hub, Edges: []Edge{{"1", "s", "hub"}, {"2", "hub", "r"}}, Pods: []Place{{"s", "hub"}}}, "pod s has a link"},
		{"pod on two nodes", Graph{Nodes: hub, Edges: []Edge{{"2", "hub", "r"}}, Pods: []Place{{"s", "hub"}, {"s", "hub"}}}, "pod s is on two nodes"},
		{"router as a pod", Graph{Nodes: hub, Edges: []Edge{{"2", "hub", "r"}}, Pods: []Place{{"hub", "hub"}}}, `pod "hub"`},
		{"too many", Incast(maxEdges), "257 links, at most 256"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.g.Check(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Check() = %v, want %q in it", err, tc.want)
			}
		})
	}
	if err := Incast(maxEdges - 1).Check(); err != nil {
		t.Errorf("with the maximum number of links: %v", err)
	}
}

func TestPathIsTheShortestAndTheSameBack(t *testing.T) {
	if err := ring.Check(); err != nil {
		t.Fatal(err)
	}
	there, err := ring.Path("s", "r")
	if err != nil {
		t.Fatal(err)
	}
	// Both paths have four links; the one through b needs bd, which comes after cd.
	if got := fmt.Sprint(there); got != "[{{s s a} false} {{ac a c} false} {{cd c d} false} {{r d r} false}]" {
		t.Errorf("path %s", got)
	}
	back, err := ring.Path("r", "s")
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(back)
	for i, s := range back {
		if s != (Step{there[i].Edge, true}) {
			t.Errorf("step %d back is %v, there %v", i, s, there[i])
		}
	}
	if _, err := ring.Path("s", "x"); err == nil {
		t.Error("Path returned a path to a node that does not exist")
	}
	if p, err := ring.Path("s", "s"); err != nil || len(p) > 0 {
		t.Errorf("Path(s, s) = %v, %v", p, err)
	}
}
