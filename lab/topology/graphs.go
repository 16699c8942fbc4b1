package topology

import "fmt"

// Dumbbell has senders on the left and receivers on the right of one link. Its
// links are sender1, ..., bottleneck, receiver1, ....
func Dumbbell(senders, receivers int) Graph {
	var g Graph
	g.senders(senders, "left")
	g.routers("left", "right")
	g.Edges = append(g.Edges, Edge{"bottleneck", "left", "right"})
	g.receivers(receivers, "right", "receiver")
	return g
}

// Incast has senders around a switch, and one receiver behind it. Its links are
// sender1, ..., bottleneck.
func Incast(senders int) Graph {
	var g Graph
	g.senders(senders, "switch")
	g.routers("switch")
	g.Nodes = append(g.Nodes, Node{"receiver1", Receiver})
	g.Edges = append(g.Edges, Edge{"bottleneck", "switch", "receiver1"})
	return g
}

// Chain is one sender and one receiver with routers between them. It has hops links,
// hop1 to hopN.
func Chain(hops int) Graph {
	g := Graph{Nodes: []Node{{"sender1", Sender}}}
	for i := 1; i < hops; i++ {
		g.routers(fmt.Sprint("router", i))
	}
	g.Nodes = append(g.Nodes, Node{"receiver1", Receiver})
	for i := 1; i <= hops; i++ {
		g.Edges = append(g.Edges, Edge{fmt.Sprint("hop", i), g.Nodes[i-1].Name, g.Nodes[i].Name})
	}
	return g
}

// Gateway is one sender and a gateway that connects it to receivers, each on a path of
// its own.
// Its links are access, path1, ....
func Gateway(paths int) Graph {
	g := Graph{
		Nodes: []Node{{"sender1", Sender}, {"gateway", Router}},
		Edges: []Edge{{"access", "sender1", "gateway"}},
	}
	g.receivers(paths, "gateway", "path")
	return g
}

// Pods is a sender and a receiver that are pods on the same node.
func Pods() Graph {
	return Graph{
		Nodes: []Node{{"sender1", Sender}, {"node1", Router}, {"receiver1", Receiver}},
		Pods:  []Place{{"sender1", "node1"}, {"receiver1", "node1"}},
	}
}

// PodsOfTwo is a sender and a receiver that are pods on two nodes. The link between these is wire.
func PodsOfTwo() Graph {
	return Graph{
		Nodes: []Node{{"sender1", Sender}, {"node1", Router}, {"node2", Router}, {"receiver1", Receiver}},
		Edges: []Edge{{"wire", "node1", "node2"}},
		Pods:  []Place{{"sender1", "node1"}, {"receiver1", "node2"}},
	}
}

// PodServer is a sender that is a pod, and a receiver that is not: wire joins it to the pod's node.
func PodServer() Graph {
	return Graph{
		Nodes: []Node{{"sender1", Sender}, {"node1", Router}, {"receiver1", Receiver}},
		Edges: []Edge{{"wire", "node1", "receiver1"}},
		Pods:  []Place{{"sender1", "node1"}},
	}
}

func (g *Graph) routers(names ...string) {
	for _, name := range names {
		g.Nodes = append(g.Nodes, Node{name, Router})
	}
}

func (g *Graph) senders(n int, router string) {
	for i := 1; i <= n; i++ {
		name := fmt.Sprint("sender", i)
		g.Nodes = append(g.Nodes, Node{name, Sender})
		g.Edges = append(g.Edges, Edge{name, name, router})
	}
}

func (g *Graph) receivers(n int, router, link string) {
	for i := 1; i <= n; i++ {
		name := fmt.Sprint("receiver", i)
		g.Nodes = append(g.Nodes, Node{name, Receiver})
		g.Edges = append(g.Edges, Edge{fmt.Sprint(link, i), router, name})
	}
}
