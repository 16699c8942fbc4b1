package topology

import (
	"fmt"
	"slices"
)

// Step is one link of a path through a Graph.
type Step struct {
	Edge     Edge
	Backward bool // from its To to its From
}

// Path returns the links that packets from one node to another cross, in order. Those of a
// pod are those of its node.
func (g Graph) Path(from, to string) ([]Step, error) {
	for _, name := range []string{from, to} {
		if !slices.ContainsFunc(g.Nodes, func(n Node) bool { return n.Name == name }) {
			return nil, fmt.Errorf("there is no node %q", name)
		}
	}
	from, to = g.place(from), g.place(to)
	next := g.toward(to)
	var steps []Step
	for from != to {
		s, ok := next[from]
		if !ok {
			return nil, fmt.Errorf("no path of links from %s to %s", from, to)
		}
		steps = append(steps, s)
		from = s.end()
	}
	return steps, nil
}

// end is the node that the step leads to.
func (s Step) end() string {
	if s.Backward {
		return s.Edge.From
	}
	return s.Edge.To
}

// cost orders paths: first by the number of their edges, then by the set of them, in
// which the last edge is the highest bit. No two sets have the same cost, so there is
// exactly one cheapest path, the same in both directions.
type cost struct {
	hops int
	set  [maxEdges / 64]uint64
}

func (c cost) with(edge int) cost {
	c.hops++
	c.set[edge/64] |= 1 << (edge % 64)
	return c
}

func (c cost) below(d cost) bool {
	if c.hops != d.hops {
		return c.hops < d.hops
	}
	for i, set := range slices.Backward(c.set[:]) {
		if set != d.set[i] {
			return set < d.set[i]
		}
	}
	return false
}

// toward returns the next step towards a node, from each node that has a path to it.
func (g Graph) toward(node string) map[string]Step {
	costs := map[string]cost{node: {}}
	next := map[string]Step{}
	for changed := true; changed; {
		changed = false
		for i, e := range g.Edges {
			for _, s := range []Step{{e, false}, {e, true}} {
				begin := Step{e, !s.Backward}.end()
				c, ok := costs[s.end()]
				if !ok {
					continue
				}
				c = c.with(i)
				if old, ok := costs[begin]; !ok || c.below(old) {
					costs[begin], next[begin], changed = c, s, true
				}
			}
		}
	}
	return next
}
