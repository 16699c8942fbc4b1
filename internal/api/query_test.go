package api

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestSelect(t *testing.T) {
	at := func(rule, addr string, bits int, samples uint64, used int, gain float64, rtt uint32) *engine.PathState {
		k := path.Of(1, 0, netip.MustParseAddr(addr), bits)
		return &engine.PathState{Key: k, Rule: rule, Prefix: fmt.Sprint(k.Prefix), Samples: samples, LastUsed: time.Unix(int64(used), 0),
			HoldOut: engine.PathHoldOut{Gain: engine.Gain{Low: gain}}, PathMetrics: engine.PathMetrics{MinRTT: rtt}}
	}
	snap := &engine.Snapshot{Learner: "thompson", Rules: []engine.RuleState{{Name: "web"}, {Name: "db"}, {Name: "new"}}, Paths: []*engine.PathState{
		at("web", "::", 0, 90, 1, 1.5, 7), at("web", "192.0.2.0", 24, 50, 5, 0, 9), at("db", "10.1.2.0", 24, 40, 9, 3, 1), at("web", "2001:db8::", 48, 1, 2, 2, 3),
	}}
	for name, tt := range map[string]struct {
		q     PathQuery
		want  []string
		total int
	}{
		"all":           {PathQuery{}, []string{"::/0", "192.0.2.0/24", "10.1.2.0/24", "2001:db8::/48"}, 4},
		"limit":         {PathQuery{Limit: 1}, []string{"::/0"}, 4},
		"rule":          {PathQuery{Rule: "db"}, []string{"10.1.2.0/24"}, 1},
		"enclosing":     {PathQuery{Prefix: netip.MustParsePrefix("192.0.2.7/32")}, []string{"::/0", "192.0.2.0/24"}, 2},
		"within":        {PathQuery{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Rule: "db"}, []string{"10.1.2.0/24"}, 1},
		"none yet":      {PathQuery{Rule: "new"}, nil, 0},
		"most recent":   {PathQuery{Sort: SortRecent, Limit: 2}, []string{"10.1.2.0/24", "192.0.2.0/24"}, 4},
		"greatest gain": {PathQuery{Sort: SortGain, Limit: 2}, []string{"10.1.2.0/24", "2001:db8::/48"}, 4},
		"greatest rtt":  {PathQuery{Sort: SortRTT, Limit: 2}, []string{"192.0.2.0/24", "::/0"}, 4},
		"by prefix":     {PathQuery{Sort: SortPrefix}, []string{"10.1.2.0/24", "192.0.2.0/24", "::/0", "2001:db8::/48"}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tt.q.Select(snap)
			if err != nil {
				t.Fatal(err)
			}
			var prefixes []string
			for _, p := range got.Paths {
				prefixes = append(prefixes, p.Prefix)
			}
			if !slices.Equal(prefixes, tt.want) || got.Total != tt.total {
				t.Errorf("got %v of %d, want %v of %d", prefixes, got.Total, tt.want, tt.total)
			}
		})
	}
	if _, err := (PathQuery{Rule: "nope"}).Select(snap); err == nil || err.(*Error).Code != 404 || err.Error() != `no rule "nope"` {
		t.Errorf("paths of a rule that does not exist: %v", err)
	}
	if snap.Paths[0].Prefix != "::/0" {
		t.Error("Select changed the order of the snapshot")
	}
}

// The pages together contain every path once, in any order; ordered by prefix, also while
// paths are created and evicted.
func TestPages(t *testing.T) {
	snap := &engine.Snapshot{}
	add := func(i int) {
		k := path.Of(1, 0, netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24)
		snap.Paths = append(snap.Paths, &engine.PathState{Key: k, Rule: "web", Prefix: fmt.Sprint(k.Prefix), Samples: uint64(100 - i)})
	}
	for i := range 25 {
		add(i)
	}
	for _, sort := range PathSorts {
		seen := map[string]int{}
		q, pages := PathQuery{Sort: sort, Limit: 10}, 0
		for {
			l, err := q.Select(snap)
			if err != nil || l.Total != 25 {
				t.Fatalf("%s: %d in all, %v", sort, l.Total, err)
			}
			for _, p := range l.Paths {
				seen[p.Prefix]++
			}
			pages++
			if q.After = l.Next; q.After == "" {
				break
			}
		}
		if pages != 3 || len(seen) != 25 {
			t.Errorf("%s: %d paths on %d pages", sort, len(seen), pages)
		}
	}
	q := PathQuery{Sort: SortPrefix, Limit: 10}
	l, _ := q.Select(snap)
	q.After = l.Next // 10.0.9.0/24
	snap.Paths = slices.DeleteFunc(snap.Paths, func(p *engine.PathState) bool { return p.Prefix == "10.0.9.0/24" })
	if l, err := q.Select(snap); err != nil || l.Paths[0].Prefix != "10.0.10.0/24" {
		t.Errorf("after a path that is gone: %v, %v", l.Paths, err)
	}
	q.Sort = SortSamples
	if _, err := q.Select(snap); err == nil || err.(*Error).Code != 410 || err.(*Error).Hint == "" {
		t.Errorf("after a path that is gone, by samples: %v", err)
	}
	q.After = "nonsense"
	if _, err := q.Select(snap); err == nil || err.(*Error).Code != 400 {
		t.Errorf("after nonsense: %v", err)
	}
}

func TestQueriesSurviveTheURL(t *testing.T) {
	paths := PathQuery{Prefix: netip.MustParsePrefix("2001:db8::/48"), Rule: "a rule & more", Sort: SortGain, Limit: 3, After: "web/0/192.0.2.0/24"}
	if got, err := parsePathQuery(paths.values()); got != paths || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	explain := ExplainRequest{Remote: netip.MustParseAddr("192.0.2.7"), RemotePort: 443, Local: netip.MustParseAddr("2001:db8::1"),
		LocalPort: 1, Cgroup: "/sys/fs/cgroup/a b", NetNS: 1 << 63, Incoming: true}
	if got, err := parseExplain(explain.values()); got != explain || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	explain.NetNS, explain.Pod = 0, "shop/web 1"
	if got, err := parseExplain(explain.values()); got != explain || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	explain.NetNS = 7
	if _, err := parseExplain(explain.values()); err == nil || !strings.Contains(err.Error(), "exclude each other") {
		t.Errorf("a pod and a namespace: %v", err)
	}
	filter := SampleFilter{Remote: netip.MustParsePrefix("192.0.2.0/24"), Kind: tcp.KindFailedConnect, MinBytes: 7}
	if got, err := parseSampleFilter(filter.values()); got != filter || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParsePrefix(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "192.0.2.7/24": "192.0.2.0/24", "::ffff:192.0.2.7": "192.0.2.7/32",
		"fe80::1%eth0": "fe80::1/128", "2001:db8::1/48": "2001:db8::/48",
	} {
		if p, err := ParsePrefix(in); err != nil || p.String() != want {
			t.Errorf("ParsePrefix(%q) = %v, %v; want %s", in, p, err, want)
		}
	}
	if _, err := ParsePrefix("192.0.2.0/33"); err == nil {
		t.Error("no error for /33")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("prefix=192.0.2.0/24&sort=gain&limit=3")
	f.Add("remote=::1&remote_port=70000&incoming=maybe")
	f.Add("remote=10.0.0.0/8&kind=close&min_bytes=1")
	f.Fuzz(func(t *testing.T, s string) {
		v, err := url.ParseQuery(s)
		if err != nil {
			return
		}
		clone := func() url.Values { c, _ := url.ParseQuery(s); return c }
		if q, err := parsePathQuery(v); err == nil {
			if again, err := parsePathQuery(q.values()); err != nil || again != q {
				t.Errorf("paths %+v becomes %+v, %v", q, again, err)
			}
		}
		if q, err := parseExplain(clone()); err == nil {
			if again, err := parseExplain(q.values()); err != nil || again != q {
				t.Errorf("explain %+v becomes %+v, %v", q, again, err)
			}
		}
		if q, err := parseSampleFilter(clone()); err == nil {
			if again, err := parseSampleFilter(q.values()); err != nil || again != q {
				t.Errorf("samples %+v becomes %+v, %v", q, again, err)
			}
		}
	})
}
