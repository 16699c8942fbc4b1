package pod

import (
	"cmp"
	"maps"
	"slices"
)

// FullName is the pod's namespace and name, "shop/web-1". A container that is not of Kubernetes has
// neither, and is named by the first characters of its id.
func (p *Pod) FullName() string {
	if p.Namespace == "" && p.Name == "" {
		return "container/" + p.Container[:min(len(p.Container), 12)]
	}
	return p.Namespace + "/" + p.Name
}

// Set is the pods that there are at one time, by the cookie of their network namespace. It is
// immutable: readers share it without locks. Its zero value, and nil, have no pods.
type Set struct {
	pods   []*Pod // in the order of namespace, name, cookie
	cookie map[uint64]*Pod
	name   map[string]*Pod
}

// NewSet returns the pods of these records. A pod with several interfaces has several records with
// one cookie: of these, the one with the first interface by name is in the set.
func NewSet(records []Pod) *Set {
	s := &Set{cookie: make(map[uint64]*Pod, len(records)), name: make(map[string]*Pod, len(records))}
	for i := range records {
		p := &records[i]
		if had := s.cookie[p.Cookie]; had == nil || cmp.Or(cmp.Compare(p.Interface, had.Interface), cmp.Compare(p.Container, had.Container)) < 0 {
			s.cookie[p.Cookie] = p
		}
	}
	for _, p := range s.cookie {
		s.pods = append(s.pods, p)
	}
	slices.SortFunc(s.pods, func(a, b *Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Cookie, b.Cookie))
	})
	for _, p := range s.pods {
		// If a pod was replaced by one of the same name and is not removed yet, the name is the new pod's.
		if had := s.name[p.FullName()]; had == nil || !had.AddedAfter(p) {
			s.name[p.FullName()] = p
		}
	}
	return s
}

// Len is the number of pods.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.pods)
}

// All lists the pods in the order of namespace and name. The caller must not change them.
func (s *Set) All() []*Pod {
	if s == nil {
		return nil
	}
	return s.pods
}

// ByCookie is the pod of a network namespace; nil if there is none.
func (s *Set) ByCookie(cookie uint64) *Pod {
	if s == nil {
		return nil
	}
	return s.cookie[cookie]
}

// ByName is the pod of a full name; nil if there is none.
func (s *Set) ByName(name string) *Pod {
	if s == nil {
		return nil
	}
	return s.name[name]
}

// Cookies lists the network namespaces of the pods that m selects, in ascending order.
func (s *Set) Cookies(m *Match) (cookies []uint64) {
	for _, p := range s.All() {
		if m.Match(p) {
			cookies = append(cookies, p.Cookie)
		}
	}
	slices.Sort(cookies)
	return cookies
}

// Since compares s with an earlier set. It returns the pods that were added, and those that were
// removed. A pod whose record changed is in both lists.
func (s *Set) Since(old *Set) (added, removed []*Pod) {
	missing := func(from, in *Set) (list []*Pod) {
		for _, p := range from.All() {
			if !same(p, in.ByCookie(p.Cookie)) {
				list = append(list, p)
			}
		}
		return list
	}
	return missing(s, old), missing(old, s)
}

// same reports whether two records describe one pod and its interface in the same way.
func same(a, b *Pod) bool {
	return a != nil && b != nil && a.Cookie == b.Cookie && a.FullName() == b.FullName() && a.Container == b.Container &&
		a.Bandwidth == b.Bandwidth && maps.Equal(a.Annotations, b.Annotations) &&
		a.Device == b.Device && a.Index == b.Index && a.HostIndex == b.HostIndex && slices.Equal(a.Addresses, b.Addresses)
}
