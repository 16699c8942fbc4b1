package pod

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func names(pods []*Pod) (list []string) {
	for _, p := range pods {
		list = append(list, fmt.Sprint(p.FullName(), " ", p.Interface, " ", p.Cookie))
	}
	return list
}

func TestSet(t *testing.T) {
	start := time.Unix(1000, 0)
	s := NewSet([]Pod{
		{Namespace: "shop", Name: "web", Cookie: 7, Interface: "net1", Added: start},
		{Namespace: "shop", Name: "web", Cookie: 7, Interface: "eth0", Added: start},
		{Namespace: "shop", Name: "web", Cookie: 5, Interface: "eth0", Added: start.Add(time.Minute)}, // the later one of that name
		{Namespace: "prod", Name: "web", Cookie: 9},
		{Container: "0123456789abcdef", Cookie: 4},
	})
	if got := names(s.All()); !slices.Equal(got, []string{"container/0123456789ab  4", "prod/web  9", "shop/web eth0 5", "shop/web eth0 7"}) {
		t.Errorf("%q", got)
	}
	if p := s.ByName("shop/web"); p == nil || p.Cookie != 5 {
		t.Errorf("by name: %+v", p)
	}
	if p := s.ByCookie(7); p == nil || p.Interface != "eth0" || s.ByCookie(8) != nil || s.ByName("shop/db") != nil {
		t.Errorf("by cookie: %+v", p)
	}
	if got := s.Cookies(&Match{Name: []string{"web"}}); !slices.Equal(got, []uint64{5, 7, 9}) {
		t.Errorf("cookies %v", got)
	}
	var none *Set
	if none.Len() != 0 || none.All() != nil || none.ByCookie(1) != nil || none.ByName("") != nil || none.Cookies(&Match{}) != nil {
		t.Error("a nil set has pods")
	}
}

func TestSince(t *testing.T) {
	var old *Set
	web := Pod{Namespace: "shop", Name: "web", Cookie: 5}
	db := Pod{Namespace: "shop", Name: "db", Cookie: 6, Annotations: map[string]string{"a": "1"}}
	changed := db
	changed.Annotations = map[string]string{"a": "2"}
	moved := web
	moved.Link = Link{Device: Veth, Index: 2, HostIndex: 9}
	for i, c := range []struct {
		pods           []Pod
		added, removed []string
	}{
		{[]Pod{web, db}, []string{"shop/db  6", "shop/web  5"}, nil},
		{[]Pod{db, web}, nil, nil},
		{[]Pod{changed, web}, []string{"shop/db  6"}, []string{"shop/db  6"}},
		{[]Pod{web}, nil, []string{"shop/db  6"}},
		{[]Pod{moved}, []string{"shop/web  5"}, []string{"shop/web  5"}},
		{nil, nil, []string{"shop/web  5"}},
	} {
		now := NewSet(c.pods)
		added, removed := now.Since(old)
		if !slices.Equal(names(added), c.added) || !slices.Equal(names(removed), c.removed) {
			t.Errorf("%d: added %q, removed %q", i, names(added), names(removed))
		}
		old = now
	}
}

// A record of an interface that cannot be is not one of a pod.
func TestCheckLink(t *testing.T) {
	for l, ok := range map[*Link]bool{
		{}:                                     true,
		{Index: 2}:                             true,
		{Device: Veth, Index: 2, HostIndex: 9}: true,
		{Device: Netkit, Index: 2}:             true,
		{Device: Netkit, Index: 2, Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/24")}}: true,
		{Device: "ipvlan", Index: 2}:            false,
		{Index: 2, HostIndex: 9}:                false,
		{Device: Veth, HostIndex: 9}:            false,
		{Device: Veth, Index: -2}:               false,
		{Device: Veth, Index: 2, HostIndex: -9}: false,
		{Addresses: make([]netip.Prefix, 1)}:    false,
	} {
		p := Pod{Cookie: 5, NetNS: "/run/netns/x", Container: "c", Interface: "eth0", Link: *l}
		if err := p.Check(); (err == nil) != ok {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// The time since the boot says which pod is later, if both have it of one boot; otherwise the clock.
func TestAddedAfter(t *testing.T) {
	now := time.Now()
	at := func(boot string, uptime, added time.Duration) *Pod {
		return &Pod{Boot: boot, Uptime: uptime, Added: now.Add(added)}
	}
	for _, c := range []struct{ later, earlier *Pod }{
		{at("a", 2, 0), at("a", 1, time.Hour)},
		{at("a", 1, time.Hour), at("b", 2, 0)},
		{at("", 0, time.Hour), at("a", 1, 0)},
		{at("", 0, time.Hour), at("", 0, 0)},
	} {
		if !c.later.AddedAfter(c.earlier) || c.earlier.AddedAfter(c.later) || c.later.AddedAfter(c.later) {
			t.Errorf("%+v, %+v", c.later, c.earlier)
		}
	}
}
