package scenario

import (
	"slices"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
	"github.com/tcpilot/tcpilot/lab/topology"
	"github.com/tcpilot/tcpilot/lab/workload"
)

// sampled is the default interval between points of a connection's time series.
const sampled = 100 * time.Millisecond

// traffic reads the parts of a round's traffic, by name.
func (r *reader) traffic(n *node, g topology.Graph) (parts []workload.Spec) {
	if !r.Want(n, yamlfile.Mapping) {
		return nil
	}
	for _, e := range n.Entries {
		if e.Key == "" || strings.ContainsAny(e.Key, "/\n") {
			r.Fail(e.Value.Place, "a part's name must not be empty and has no /", "rename it")
		}
		if r.Want(e.Value, yamlfile.Mapping) {
			parts = append(parts, r.part(e.Key, e.Value, g))
		}
	}
	return parts
}

func (r *reader) part(name string, n *node, g topology.Graph) workload.Spec {
	s := workload.Spec{Name: name}
	before := r.Failed
	r.fields(n,
		field{"kind", oneOf(r, "kind of traffic", &s.Kind, workload.Bulk, workload.RPC, workload.Flows,
			workload.Churn, workload.Mux, workload.Iperf3, workload.Wrk, workload.Web)},
		field{"from", r.hosts(&s.From, g)},
		field{"to", r.hosts(&s.To, g)},
		field{"ipv6", r.bool(&s.IPv6)},
		field{"start", r.duration(&s.Start, 0, workload.MaxDuration)},
		field{"duration", r.duration(&s.Duration, time.Millisecond, workload.MaxDuration)},
		field{"end", r.duration(&s.End, 0, workload.MaxDuration)},
		field{"count", r.count(&s.Count, 1, workload.MaxCount)},
		field{"streams", r.count(&s.Streams, 1, workload.MaxStreams)},
		field{"cc", r.text(&s.CC)},
		field{"request", r.size(&s.Request)},
		field{"reply", r.size(&s.Reply)},
		field{"think", r.duration(&s.Think, 0, workload.MaxDuration)},
		field{"deadline", r.duration(&s.Deadline, 0, workload.MaxDuration)},
		field{"concurrency", r.count(&s.Concurrency, 1, workload.MaxConcurrency)},
		field{"client", oneOf(r, "client", &s.Client, workload.OwnClient, workload.Curl)},
		field{"first", r.count(&s.First, 1, workload.MaxCount)},
		field{"gap", r.duration(&s.Gap, 0, workload.MaxDuration)},
		field{"rate", r.number(&s.Rate, 1e6)},
		field{"size", r.sizes(&s.Size)},
		field{"trace", r.trace(&s.Trace)},
		field{"paths", r.count(&s.Paths, 1, topology.MaxSpread)},
		field{"seed", func(n *node) {
			var seed int
			r.count(&seed, 0, maxSeed)(n)
			s.Seed = int64(seed)
		}},
		field{"sample", r.duration(&s.Sample, 0, time.Minute)},
	)
	lasting := []workload.Kind{workload.Bulk, workload.RPC, workload.Mux}
	if n.Get("sample") == nil && slices.Contains(lasting, s.Kind) {
		s.Sample = sampled
	}
	switch {
	case n.Get("kind") == nil:
		r.Fail(n.Place, "traffic without a kind", "write kind: bulk, rpc, flows, churn, mux, iperf3, wrk or web")
	case r.Failed == before:
		if err := s.Check(); err != nil {
			r.wrong(n, err)
		}
	}
	return s
}

// wrong reports what a Check found, lines of "key: problem", at the place of the key in
// one of the mappings.
func (r *reader) wrong(n *node, err error, more ...*node) {
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		key, what, ok := strings.Cut(line, ": ")
		at := n
		for _, in := range append([]*node{n}, more...) {
			if v := in.Get(key); ok && v != nil {
				at, line = v, what
				break
			}
		}
		r.Fail(at.Place, line, "correct it, or the key that it depends on")
	}
}

// hosts reads the hosts that a part's traffic is from or to.
func (r *reader) hosts(to *string, g topology.Graph) func(*node) {
	names := []string{"senders", "receivers"}
	for _, n := range g.Nodes {
		if n.Role != topology.Router {
			names = append(names, n.Name)
		}
	}
	return oneOf(r, "host", to, names...)
}

// sizes reads a fixed size, or a bounded Pareto distribution.
func (r *reader) sizes(to *workload.Size) func(*node) {
	return func(n *node) {
		*to = workload.Size{}
		if n.Kind == yamlfile.Text {
			r.size(&to.Fixed)(n)
			return
		}
		r.fields(n, field{"alpha", r.number(&to.Alpha, 10)}, field{"scale", r.bytes(&to.Scale)}, field{"max", r.bytes(&to.Max)})
		if to.Alpha == 0 || to.Scale == 0 || to.Max <= to.Scale {
			r.Fail(n.Place, "a bounded Pareto distribution needs alpha, scale (its minimum) and a max above scale",
				"write {alpha: 0.8, scale: 20kB, max: 20MB}")
		}
	}
}

// trace reads arrivals: lines of {at, size}.
func (r *reader) trace(to *[]workload.Arrival) func(*node) {
	return func(n *node) {
		*to = nil
		if !r.Want(n, yamlfile.List) {
			return
		}
		for _, item := range n.Items {
			var a workload.Arrival
			r.fields(item, field{"at", r.duration(&a.At, 0, workload.MaxDuration)}, field{"size", r.size(&a.Size)})
			if k := len(*to); k > 0 && a.At < (*to)[k-1].At {
				r.Fail(item.Place, "earlier than the previous arrival", "put arrivals in the order of time")
			}
			*to = append(*to, a)
		}
	}
}
