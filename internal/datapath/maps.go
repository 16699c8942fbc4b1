package datapath

import (
	"errors"

	"github.com/cilium/ebpf"
)

// batchSize bounds the memory of one batch call.
const batchSize = 8192

// putBatch writes rows in as few system calls as possible: one by one if the kernel has no
// batch operation for the map's type.
func putBatch[K, V any](m *ebpf.Map, keys []K, values []V) error {
	for len(keys) > 0 {
		n := min(batchSize, len(keys))
		if _, err := m.BatchUpdate(keys[:n], values[:n], nil); errors.Is(err, ebpf.ErrNotSupported) {
			return putEach(m, keys, values)
		} else if err != nil {
			return err
		}
		keys, values = keys[n:], values[n:]
	}
	return nil
}

func putEach[K, V any](m *ebpf.Map, keys []K, values []V) error {
	for i := range keys {
		if err := m.Put(&keys[i], &values[i]); err != nil {
			return err
		}
	}
	return nil
}

// deleteWhere removes every key for which drop returns true. Keys are collected first,
// because a map must not change during iteration.
func deleteWhere[K any](m *ebpf.Map, drop func(*K) bool) error {
	var keys []K
	var k K
	v := make([]byte, m.ValueSize())
	it := m.Iterate()
	for it.Next(&k, &v) {
		if drop(&k) {
			keys = append(keys, k)
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	for i := range keys {
		if err := m.Delete(&keys[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
