package engine

// Lists that a node may be in. The links are part of the node, so that a list allocates
// nothing: 10,000 paths do not cost 20,000 objects more.
const (
	listUse       = iota // least recently used first
	listProbation        // the part of listUse that is not admitted yet
	listWrite            // least recently written first
	listChildren         // those of one parent, least recently used first
	listNetwork          // those of one network, of each length in networkLevels
	numLists      = listNetwork + len(networkLevels)
)

type links struct{ prev, next *node }

// list is a doubly linked list of nodes.
type list struct {
	which       int
	first, last *node
	len         int
}

func (l *list) pushBack(n *node) {
	n.links[l.which] = links{prev: l.last}
	n.memberOf |= 1 << l.which
	if l.last != nil {
		l.last.links[l.which].next = n
	} else {
		l.first = n
	}
	l.last = n
	l.len++
}

// remove takes n out; a node that is not in the list is left as it is.
func (l *list) remove(n *node) {
	if !l.has(n) {
		return
	}
	k := &n.links[l.which]
	if k.prev != nil {
		k.prev.links[l.which].next = k.next
	} else {
		l.first = k.next
	}
	if k.next != nil {
		k.next.links[l.which].prev = k.prev
	} else {
		l.last = k.prev
	}
	*k = links{}
	n.memberOf &^= 1 << l.which
	l.len--
}

// has reports whether n is in the list, or in another one of the same kind.
func (l *list) has(n *node) bool { return n.memberOf&(1<<l.which) != 0 }

// toBack moves n to the end, if it is in the list.
func (l *list) toBack(n *node) {
	if l.last != n && l.has(n) {
		l.remove(n)
		l.pushBack(n)
	}
}

// each calls f for every node, in order. f may remove its node.
func (l *list) each(f func(*node)) {
	for n := l.first; n != nil; {
		next := n.links[l.which].next
		f(n)
		n = next
	}
}
