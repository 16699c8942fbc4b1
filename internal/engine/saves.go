package engine

import "slices"

// saves are the changes that the store does not have yet.
type saves struct {
	changed   []*node  // nodes whose record in the store is old or missing
	forgotten []PathID // to be deleted from the store
	// left is what is known of rules as a whole that are not in force any more: their records age from now on.
	left []StoredPath
	// What take returned, until confirm or putBack.
	saving     []*node
	forgetting []PathID
	leaving    []StoredPath
}

// add notes that the store does not have what is known of a node.
func (sv *saves) add(n *node) {
	if !n.changed && !n.gone {
		n.changed = true
		sv.changed = append(sv.changed, n)
	}
}

// forget notes that a node is dropped.
func (sv *saves) forget(n *node) {
	if n.stored {
		sv.forgotten = append(sv.forgotten, n.place())
	}
}

// leave notes that a rule is not in force any more. Its root is n.
func (sv *saves) leave(n *node, m StoredPath) {
	if !n.stored && !n.changed && !slices.Contains(sv.saving, n) {
		return // nothing is known of it
	}
	sv.left = slices.DeleteFunc(sv.left, func(l StoredPath) bool { return l.PathID == m.PathID }) // the store could not be written
	sv.left = append(sv.left, m)
}

// back returns what is known of rules that come back, and that the store may not have. The caller notes their roots as changed.
func (sv *saves) back(rules map[string]bool) (paths []StoredPath) {
	sv.left = slices.DeleteFunc(sv.left, func(m StoredPath) bool {
		if rules[m.Rule] {
			paths = append(paths, m)
		}
		return rules[m.Rule]
	})
	return paths
}

// take returns at most limit nodes, and all paths to delete; more says that there are more nodes. It
// is followed by confirm or putBack; otherwise the next take returns the same again.
func (sv *saves) take(limit int) (nodes []*node, forgotten []PathID, more bool) {
	sv.putBack()
	sv.forgetting, sv.forgotten = sv.forgotten, nil
	sv.leaving, sv.left = sv.left, nil
	for len(sv.changed) > 0 && len(sv.saving) < limit {
		n := sv.changed[0]
		sv.changed = sv.changed[1:]
		n.changed = false
		if !n.gone {
			sv.saving = append(sv.saving, n)
		}
	}
	if len(sv.changed) == 0 {
		sv.changed = nil
	}
	return sv.saving, sv.forgetting, len(sv.changed) > 0
}

// confirm notes that the store has what take returned.
func (sv *saves) confirm() {
	for _, n := range sv.saving {
		n.stored = true
		if n.gone { // dropped while it was being stored
			sv.forget(n)
		}
	}
	sv.saving, sv.forgetting, sv.leaving = nil, nil, nil
}

// putBack returns what was not confirmed to the lists of changes.
func (sv *saves) putBack() {
	for _, n := range sv.saving {
		sv.add(n)
	}
	sv.forgotten = append(sv.forgetting, sv.forgotten...)
	sv.left = append(sv.leaving, sv.left...)
	sv.saving, sv.forgetting, sv.leaving = nil, nil, nil
}

// dropGone removes dropped nodes.
func (sv *saves) dropGone() { sv.changed = slices.DeleteFunc(sv.changed, (*node).isGone) }
