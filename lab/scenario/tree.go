package scenario

import (
	"slices"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

type node = yamlfile.Node

// merge overlays a with b: mappings are merged by key, other values are replaced.
func merge(a, b *node) *node {
	if a == nil || b == nil || a.Kind != yamlfile.Mapping || b.Kind != yamlfile.Mapping {
		if b == nil {
			return a
		}
		return b
	}
	m := *a
	m.Entries = make([]*yamlfile.Entry, 0, len(a.Entries)+len(b.Entries))
	for _, e := range a.Entries {
		if over := b.Get(e.Key); over != nil {
			e = &yamlfile.Entry{Key: e.Key, At: e.At, Value: merge(e.Value, over)}
		}
		m.Entries = append(m.Entries, e)
	}
	for _, e := range b.Entries {
		if a.Get(e.Key) == nil {
			m.Entries = append(m.Entries, e)
		}
	}
	return &m
}

// without returns a mapping without some keys.
func without(n *node, keys ...string) *node {
	return filter(n, func(key string) bool { return !slices.Contains(keys, key) })
}

// pick returns a mapping with only some keys.
func pick(n *node, keys ...string) *node {
	return filter(n, func(key string) bool { return slices.Contains(keys, key) })
}

func filter(n *node, keep func(key string) bool) *node {
	m := *n
	m.Entries = nil
	for _, e := range n.Entries {
		if keep(e.Key) {
			m.Entries = append(m.Entries, e)
		}
	}
	return &m
}
