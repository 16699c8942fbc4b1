package api

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// The API's paths. Within v1 fields are added, never removed or changed.
const (
	pathStatus    = "/v1/status"
	pathSnapshot  = "/v1/snapshot"
	pathPaths     = "/v1/paths"
	pathRules     = "/v1/rules"
	pathExplain   = "/v1/explain"
	pathDoctor    = "/v1/doctor"
	pathSamples   = "/v1/samples"
	pathReload    = "/v1/reload"
	pathDetach    = "/v1/detach"
	pathRollout   = "/v1/rollout"
	pathLoaded    = "/v1/programs"
	pathControls  = "/v1/cc"
	pathPods      = "/v1/pods"
	pathPodSync   = "/v1/pods/sync"
	pathPodDetach = "/v1/pods/detach"
)

// query reads the parameters of one request, and keeps the first error.
type query struct {
	values url.Values
	err    *Error
}

func (q *query) take(name string) string {
	v := q.values.Get(name)
	q.values.Del(name)
	return v
}

func (q *query) fail(name, v, want string) {
	if q.err == nil {
		q.err = malformed("%s %q: want %s", name, v, want)
	}
}

func (q *query) uint(name string, bits int) uint64 {
	v := q.take(name)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseUint(v, 10, bits)
	if err != nil {
		q.fail(name, v, "a number below 2^"+strconv.Itoa(bits))
	}
	return n
}

func (q *query) addr(name string) netip.Addr {
	v := q.take(name)
	if v == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(v)
	if err != nil {
		q.fail(name, v, "an IP address")
	}
	return a.Unmap()
}

func (q *query) prefix(name string) netip.Prefix {
	v := q.take(name)
	if v == "" {
		return netip.Prefix{}
	}
	p, err := ParsePrefix(v)
	if err != nil {
		q.fail(name, v, "an IP address or prefix")
	}
	return p
}

func (q *query) bool(name string) bool {
	v := q.take(name)
	if v == "" {
		return false
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		q.fail(name, v, "true or false")
	}
	return b
}

// done reports the first error; a parameter that nobody took is one.
func (q *query) done() error {
	if q.err != nil {
		return q.err
	}
	for name := range q.values {
		return malformed("unknown parameter %q", name).WithHint("docs/api.md lists the parameters of each request")
	}
	return nil
}

// ParsePrefix reads a prefix, or an address as a prefix of its full length.
func ParsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return p.Masked(), nil
}

func parsePathQuery(v url.Values) (PathQuery, error) {
	q := query{values: v}
	r := PathQuery{Prefix: q.prefix("prefix"), Rule: q.take("rule"), Sort: PathSort(q.take("sort")), Limit: int(q.uint("limit", 31)), After: q.take("after")}
	if r.Sort != "" && !slices.Contains(PathSorts, r.Sort) {
		q.fail("sort", string(r.Sort), "samples, recent, gain, rtt or prefix")
	}
	return r, q.done()
}

func (r PathQuery) values() url.Values {
	v := url.Values{}
	if r.Prefix.IsValid() {
		v.Set("prefix", r.Prefix.String())
	}
	setIf(v, "rule", r.Rule)
	setIf(v, "sort", string(r.Sort))
	if r.Limit > 0 {
		v.Set("limit", strconv.Itoa(r.Limit))
	}
	setIf(v, "after", r.After)
	return v
}

// Select returns the paths of snap that the query asks for.
func (r PathQuery) Select(snap *engine.Snapshot) (PathList, error) {
	l := PathList{At: snap.At, Learner: snap.Learner, Mode: snap.Mode, Rollouts: RolloutsOf(snap.Rules), Paths: []*engine.PathState{}}
	for _, p := range snap.Paths {
		if r.match(p) {
			l.Paths = append(l.Paths, p)
		}
	}
	known := func(rule engine.RuleState) bool { return rule.Name == r.Rule }
	if r.Rule != "" && len(l.Paths) == 0 && !slices.ContainsFunc(snap.Rules, known) {
		return PathList{}, NotFound("no rule %q", r.Rule).WithHint("see 'tcpilot rules'")
	}
	l.Total = len(l.Paths)
	if order := r.order(); order != nil {
		slices.SortStableFunc(l.Paths, order)
	}
	if err := r.skip(&l); err != nil {
		return PathList{}, err
	}
	if r.Limit > 0 && r.Limit < len(l.Paths) {
		l.Paths = l.Paths[:r.Limit]
		l.Next = cursor(l.Paths[r.Limit-1])
	}
	return l, nil
}

// cursor names a path for PathQuery.After. No rule has a slash in its name.
func cursor(p *engine.PathState) string {
	return fmt.Sprintf("%s/%d/%s", p.Rule, p.Scope, p.Prefix)
}

// skip drops the paths up to r.After.
func (r PathQuery) skip(l *PathList) error {
	if r.After == "" {
		return nil
	}
	i := slices.IndexFunc(l.Paths, func(p *engine.PathState) bool { return cursor(p) == r.After })
	if i >= 0 {
		l.Paths = l.Paths[i+1:]
		return nil
	}
	part := strings.SplitN(r.After, "/", 3)
	if len(part) < 3 {
		return malformed("after %q: want what an earlier answer has as next", r.After)
	}
	scope, err1 := strconv.ParseUint(part[1], 10, 64)
	prefix, err2 := netip.ParsePrefix(part[2])
	switch {
	case err1 != nil || err2 != nil:
		return malformed("after %q: want what an earlier answer has as next", r.After)
	case r.Sort != SortPrefix: // the path is gone, and so is its place in the order
		return (&Error{Code: http.StatusGone, Message: "after " + r.After + ": the path was forgotten"}).
			WithHint("begin again, or use sort=prefix, in which no path is missed")
	}
	last := &engine.PathState{Rule: part[0], Scope: scope}
	last.Key.Prefix = prefix
	i, _ = slices.BinarySearchFunc(l.Paths, last, r.order())
	l.Paths = l.Paths[i:]
	return nil
}

func (r PathQuery) match(p *engine.PathState) bool {
	if r.Rule != "" && r.Rule != p.Rule {
		return false
	}
	if !r.Prefix.IsValid() {
		return true
	}
	prefix := p.Key.Prefix
	return p.Key.IsRoot() || prefix.Overlaps(r.Prefix)
}

func (r PathQuery) order() func(a, b *engine.PathState) int {
	switch r.Sort {
	case SortRecent:
		return func(a, b *engine.PathState) int { return b.LastUsed.Compare(a.LastUsed) }
	case SortGain:
		return func(a, b *engine.PathState) int { return cmp.Compare(b.HoldOut.Gain.Low, a.HoldOut.Gain.Low) }
	case SortRTT:
		return func(a, b *engine.PathState) int { return cmp.Compare(b.MinRTT, a.MinRTT) }
	case SortPrefix:
		return func(a, b *engine.PathState) int {
			return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Scope, b.Scope),
				a.Key.Prefix.Addr().Compare(b.Key.Prefix.Addr()), cmp.Compare(a.Key.Prefix.Bits(), b.Key.Prefix.Bits()))
		}
	}
	return nil // the snapshot has most samples first
}

func parseExplain(v url.Values) (ExplainRequest, error) {
	q := query{values: v}
	r := ExplainRequest{
		Remote: q.addr("remote"), RemotePort: uint16(q.uint("remote_port", 16)),
		Local: q.addr("local"), LocalPort: uint16(q.uint("local_port", 16)),
		Cgroup: q.take("cgroup"), NetNS: q.uint("netns", 64), Pod: q.take("pod"), Incoming: q.bool("incoming"),
	}
	if q.err == nil && r.Pod != "" && r.NetNS != 0 {
		q.err = malformed("explain: netns and pod exclude each other: name one of them")
	}
	if q.err == nil && !r.Remote.IsValid() {
		q.err = malformed("explain: want a remote address")
	}
	return r, q.done()
}

func (r ExplainRequest) values() url.Values {
	v := url.Values{"remote": {r.Remote.String()}}
	setUint(v, "remote_port", uint64(r.RemotePort))
	if r.Local.IsValid() {
		v.Set("local", r.Local.String())
	}
	setUint(v, "local_port", uint64(r.LocalPort))
	setIf(v, "cgroup", r.Cgroup)
	setUint(v, "netns", r.NetNS)
	setIf(v, "pod", r.Pod)
	if r.Incoming {
		v.Set("incoming", "true")
	}
	return v
}

func parseSampleFilter(v url.Values) (SampleFilter, error) {
	q := query{values: v}
	f := SampleFilter{Remote: q.prefix("remote"), MinBytes: q.uint("min_bytes", 64)}
	if w := q.take("kind"); w != "" {
		if f.Kind = kindOf(w); f.Kind == 0 {
			q.fail("kind", w, "close, interval or failed-connect")
		}
	}
	return f, q.done()
}

func (f SampleFilter) values() url.Values {
	v := url.Values{}
	if f.Remote.IsValid() {
		v.Set("remote", f.Remote.String())
	}
	if f.Kind != tcp.Kind(0) {
		v.Set("kind", f.Kind.String())
	}
	setUint(v, "min_bytes", f.MinBytes)
	return v
}

func setIf(v url.Values, name, value string) {
	if value != "" {
		v.Set(name, value)
	}
}

func setUint(v url.Values, name string, n uint64) {
	if n != 0 {
		v.Set(name, strconv.FormatUint(n, 10))
	}
}
