package scenario

import (
	"cmp"
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// shapes are the networks that have a name, with the keys that give their size (1 if
// left out).
var shapes = map[string]struct {
	keys []string
	make func(size map[string]int) topology.Graph
}{
	"dumbbell": {[]string{"senders", "receivers"}, func(n map[string]int) topology.Graph {
		return topology.Dumbbell(n["senders"], n["receivers"])
	}},
	"incast":  {[]string{"senders"}, func(n map[string]int) topology.Graph { return topology.Incast(n["senders"]) }},
	"chain":   {[]string{"hops"}, func(n map[string]int) topology.Graph { return topology.Chain(n["hops"]) }},
	"gateway": {[]string{"paths"}, func(n map[string]int) topology.Graph { return topology.Gateway(n["paths"]) }},
	"pods": {[]string{"nodes"}, func(n map[string]int) topology.Graph {
		if n["nodes"] == 1 {
			return topology.Pods()
		}
		return topology.PodsOfTwo()
	}},
	"pod-server": {nil, func(map[string]int) topology.Graph { return topology.PodServer() }},
}

// kinds are the kinds of topology, in the order in which messages list them.
var kinds = []string{"dumbbell", "incast", "chain", "gateway", "pods", "pod-server"}

// most are the maximum values of these keys; the others have 100.
var most = map[string]int{"nodes": 2}

// topology reads a network: one of the shapes, or hosts and links by name. It returns
// nil if the network is invalid.
func (r *reader) topology(n *node) *topology.Graph {
	if !r.Want(n, yamlfile.Mapping) {
		return nil
	}
	var g topology.Graph
	before := r.Failed
	if n.Get("kind") == nil {
		r.fields(n,
			field{"hosts", func(n *node) { r.nodes(n, &g) }},
			field{"links", func(n *node) { r.edges(n, &g) }},
			field{"pods", func(n *node) { r.pods(n, &g) }})
	} else {
		var kind string
		size := make(map[string]int)
		known := []field{{"kind", oneOf(r, "kind of topology", &kind, kinds...)}}
		oneOf(r, "kind of topology", &kind, kinds...)(n.Get("kind"))
		for _, key := range shapes[kind].keys {
			size[key] = 1
			known = append(known, field{key, func(n *node) {
				v := 1
				r.count(&v, 1, cmp.Or(most[key], 100))(n)
				size[key] = v
			}})
		}
		if kind == "" {
			return nil
		}
		r.fields(n, known...)
		g = shapes[kind].make(size)
	}
	if r.Failed > before {
		return nil
	}
	if err := g.Check(); err != nil {
		r.Fail(n.Place, err.Error(), "write {hosts: {a: sender, b: receiver}, links: {wire: [a, b]}} or {kind: dumbbell}")
		return nil
	}
	return &g
}

// nodes reads hosts: their names and roles.
func (r *reader) nodes(n *node, g *topology.Graph) {
	if !r.Want(n, yamlfile.Mapping) {
		return
	}
	for _, e := range n.Entries {
		node := topology.Node{Name: e.Key}
		oneOf(r, "role", &node.Role, topology.Sender, topology.Receiver, topology.Router)(e.Value)
		g.Nodes = append(g.Nodes, node)
	}
}

// pods reads the hosts that are pods, and the router that is the node of each.
func (r *reader) pods(n *node, g *topology.Graph) {
	if !r.Want(n, yamlfile.Mapping) {
		return
	}
	for _, e := range n.Entries {
		if r.Want(e.Value, yamlfile.Text) {
			g.Pods = append(g.Pods, topology.Place{Pod: e.Key, Node: e.Value.Text})
		}
	}
}

// edges reads links: their names and both ends.
func (r *reader) edges(n *node, g *topology.Graph) {
	if !r.Want(n, yamlfile.Mapping) {
		return
	}
	for _, e := range n.Entries {
		if e.Value.Kind != yamlfile.List || len(e.Value.Items) != 2 {
			r.Fail(e.Value.Place, "a link has two ends", fmt.Sprintf("write %s: [a, b], from the senders' side to the receivers'", e.Key))
			continue
		}
		g.Edges = append(g.Edges, topology.Edge{Name: e.Key, From: e.Value.Items[0].Text, To: e.Value.Items[1].Text})
	}
}

// rttThrough is the longest round trip, by the delays of the links, of the paths from a
// sender to a receiver that cross an edge, or of all paths if none crosses it.
func rttThrough(g topology.Graph, links map[string]Link, edge string) time.Duration {
	var through, all time.Duration
	for _, way := range ways(g) {
		var rtt time.Duration
		uses := false
		for _, e := range way {
			rtt += links[e].Forward.Delay + links[e].Backward.Delay
			uses = uses || e == edge
		}
		all = max(all, rtt)
		if uses {
			through = max(through, rtt)
		}
	}
	if through > 0 {
		return through
	}
	return all
}

// ways lists the edges of the path from each sender to each receiver, as the topology
// routes it.
func ways(g topology.Graph) (list [][]string) {
	for _, from := range g.Nodes {
		if from.Role != topology.Sender {
			continue
		}
		for _, to := range g.Nodes {
			if to.Role != topology.Receiver {
				continue
			}
			// If there is no path, Graph.Check refuses the graph.
			if steps, err := g.Path(from.Name, to.Name); err == nil {
				way := make([]string, len(steps))
				for i, s := range steps {
					way[i] = s.Edge.Name
				}
				list = append(list, way)
			}
		}
	}
	return list
}
