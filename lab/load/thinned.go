package load

import "slices"

// thinned keeps the values of every n-th number. n is doubled as needed, so that no more
// than limit are kept. It is for results whose count is not known in advance.
type thinned[T any] struct {
	limit  int
	stride uint64 // every 1st if 0
	kept   []numbered[T]
}

type numbered[T any] struct {
	n uint64
	v T
}

// takes reports whether number n would be kept at present.
func (t *thinned[T]) takes(n uint64) bool { return t.limit > 0 && n%max(t.stride, 1) == 0 }

// add keeps the value of number n if takes(n). Numbers may come in any order.
func (t *thinned[T]) add(n uint64, v T) {
	for t.takes(n) && len(t.kept) >= t.limit {
		t.stride = 2 * max(t.stride, 1)
		t.kept = slices.DeleteFunc(t.kept, func(k numbered[T]) bool { return !t.takes(k.n) })
	}
	if t.takes(n) {
		t.kept = append(t.kept, numbered[T]{n, v})
	}
}

// all returns the kept values.
func (t *thinned[T]) all() []T {
	all := make([]T, len(t.kept))
	for i, k := range t.kept {
		all[i] = k.v
	}
	return all
}
