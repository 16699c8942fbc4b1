package engine

import (
	"cmp"
	"slices"
)

// Options.Limit bounds the nodes that are kept. If there are more, the least recently used node is
// dropped, but
//
//   - nodes of which little is known (on probation) are dropped before others, unless they are few: a
//     client that connects once from each of many networks does not evict paths that are in use;
//   - nodes of a network that has more than its part of the room are dropped before others: whoever has
//     a large prefix, or hosts in one, has many paths, and can end the probation of each by connections.
//
// The second exception does not apply as long as there is room, or nodes that nobody has used for a day:
// a server whose clients are all in one network may know as many of them as fit.

// networkLevels are the lengths of prefix by which nodes are counted. part: a network has at most
// 1/part of the room, of all nodes and of those on probation, if others need it. /16 and /32 are about
// what one provider has (RIPE-738, 5.1.2: /32, up to /29 without justification), /8 and /24 are what
// contains several allocations of one.
var networkLevels = [...]struct{ v4, v6, part int }{
	{v4: 16, v6: 32, part: 8},
	{v4: 8, v6: 24, part: 4},
}

const (
	// probationPart: nodes on probation have at least 1/probationPart of the room.
	probationPart = 8
	// leastNetwork is the least number of nodes that a network may have.
	leastNetwork = 8
	// longUnused is the time in nanoseconds without a connection after which a node has no claim to
	// its room: four times learn.ThompsonOptions.HalfLife, so that 1/16 of its evidence is left.
	longUnused = 24 * 3600 * 1e9
)

// cache is the nodes that Options.Limit bounds: all but the rules' own roots.
type cache struct {
	limit     int
	byUse     list // least recently used first
	probation list // the part of byUse that is on probation
	networks  map[key]*network
	// crowded are networks with more than their part of the room, crowdedProbation those with more than
	// their part of that of nodes on probation.
	crowded, crowdedProbation []*network
}

// network is the nodes of one prefix, of all rules.
type network struct {
	key
	level int
	// nodes are in the order in which victim last passed them over. Unlike the order of use, this
	// order does not have to be updated when a node is used.
	nodes       list
	onProbation int // of nodes
}

func newCache(limit int) cache {
	return cache{limit: limit, networks: map[key]*network{}, byUse: list{which: listUse}, probation: list{which: listProbation}}
}

// add adds a node, which is on probation at first.
func (c *cache) add(n *node) {
	c.byUse.pushBack(n)
	c.probation.pushBack(n)
	for level := range networkLevels {
		if nw := c.network(n.key, level); nw != nil {
			n.networks[level] = nw
			nw.nodes.pushBack(n)
			nw.onProbation++
			c.count(nw)
		}
	}
}

// network returns the network of a key; nil if the key is not within one.
func (c *cache) network(k key, level int) *network {
	bits := networkLevels[level].v6
	if k.is4() {
		bits = networkLevels[level].v4 + mappedLen
	}
	if int(k.bits) < bits {
		return nil
	}
	k.class, k.scope = 0, 0
	k = k.cut(bits)
	nw := c.networks[k]
	if nw == nil {
		nw = &network{key: k, level: level, nodes: list{which: listNetwork + level}}
		c.networks[k] = nw
	}
	return nw
}

// count updates whether a network has more than its part.
func (c *cache) count(nw *network) {
	set := func(in *[]*network, more bool) {
		switch i := slices.Index(*in, nw); {
		case more && i < 0:
			*in = append(*in, nw)
		case !more && i >= 0:
			*in = slices.Delete(*in, i, i+1)
		}
	}
	part := networkLevels[nw.level].part
	set(&c.crowded, nw.nodes.len > max(leastNetwork, c.limit/part))
	set(&c.crowdedProbation, nw.onProbation > max(leastNetwork, c.limit/probationPart/part))
	if nw.nodes.len == 0 {
		delete(c.networks, nw.key)
	}
}

func (c *cache) remove(n *node) {
	c.admit(n)
	c.byUse.remove(n)
	for _, nw := range n.networks {
		if nw != nil {
			nw.nodes.remove(n)
			c.count(nw)
		}
	}
	n.networks = [len(networkLevels)]*network{}
}

// admit ends the probation of a node.
func (c *cache) admit(n *node) {
	if !c.probation.has(n) {
		return
	}
	c.probation.remove(n)
	for _, nw := range n.networks {
		if nw != nil {
			nw.onProbation--
			c.count(nw)
		}
	}
}

// touch makes n the most recently used.
func (c *cache) touch(n *node) {
	c.byUse.toBack(n)
	c.probation.toBack(n)
}

// victim returns the node to drop next; nil if there is room. A node with children is not dropped
// before them.
func (c *cache) victim(now int64) *node {
	for c.byUse.len > c.limit {
		all, crowded := &c.byUse, c.crowded
		if c.probation.len > c.limit/probationPart {
			all, crowded = &c.probation, c.crowdedProbation
		}
		if n := all.first; len(crowded) > 0 && now-n.lastUsed < longUnused {
			nw := slices.MinFunc(crowded, func(a, b *network) int { return cmp.Compare(a.level, b.level) })
			if n := nw.victim(all); n != nil {
				return n
			}
		}
		n := all.first
		if n.children.len == 0 {
			return n
		}
		c.byUse.toBack(n)
		c.admit(n)
	}
	return nil
}

// victim returns a node of the network without children that is in the list and was not used since it
// was last passed over ("second chance", F. J. Corbato, 1968); nil if there is none.
func (nw *network) victim(in *list) *node {
	for range 2 * nw.nodes.len { // in the second round, none was used since the first
		n := nw.nodes.first
		if in.has(n) && n.children.len == 0 && n.passedOver == n.lastUsed {
			return n
		}
		n.passedOver = n.lastUsed
		nw.nodes.toBack(n)
	}
	return nil
}
