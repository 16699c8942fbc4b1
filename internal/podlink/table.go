package podlink

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// table is a map of the programs that only user space writes, with a copy of its rows.
type table[K, V comparable] struct {
	m    *ebpf.Map
	rows map[K]V
}

// openTable reads the rows that an earlier process left.
func openTable[K, V comparable](m *ebpf.Map) (t table[K, V], err error) {
	t = table[K, V]{m, map[K]V{}}
	var k K
	var v V
	rows := m.Iterate()
	for rows.Next(&k, &v) {
		t.rows[k] = v
	}
	if err := rows.Err(); err != nil {
		return t, fmt.Errorf("read %s: %w", m, err)
	}
	return t, nil
}

// add writes the rows that are missing or differ.
func (t *table[K, V]) add(rows map[K]V) error {
	for k, v := range rows {
		if had, ok := t.rows[k]; ok && had == v {
			continue
		}
		if err := t.m.Put(&k, &v); err != nil {
			return fmt.Errorf("write %s: %w", t.m, err)
		}
		t.rows[k] = v
	}
	return nil
}

// trim deletes all rows whose keys are not in rows.
func (t *table[K, V]) trim(rows map[K]V) error {
	for k := range t.rows {
		if _, keep := rows[k]; keep {
			continue
		}
		if err := t.m.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("write %s: %w", t.m, err)
		}
		delete(t.rows, k)
	}
	return nil
}
