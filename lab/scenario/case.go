package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/lab/measure"
	"github.com/tcpilot/tcpilot/lab/topology"
	"github.com/tcpilot/tcpilot/lab/workload"
)

// readCase reads a case into which everything that it inherits is merged.
func (r *reader) readCase(n *node) Case {
	c := Case{Repeat: 5, Primary: "goodput", Sysctls: map[string]string{}}
	// The network is read first, because other keys refer to names in it.
	t := n.get("topology")
	if t == nil {
		r.fail(n, "no topology", "write topology: {kind: dumbbell}")
		return c
	}
	g := r.topology(t)
	if g == nil {
		return c
	}
	c.Graph = *g
	r.fields(n,
		field{"name", r.text(&c.Name)},
		field{"topology", func(*node) {}},
		field{"links", func(n *node) { c.Links = r.links(n, c.Graph) }},
		field{"tuned", func(n *node) { c.Tuned = r.tuned(n, c.Graph) }},
		field{"sysctls", r.sysctls(c.Sysctls)},
		field{"traffic", func(n *node) { c.Traffic = r.traffic(n, c.Graph) }},
		field{"subjects", func(n *node) { c.Subjects = r.subjects(n) }},
		field{"baseline", r.text(&c.Baseline)},
		field{"cc", r.text(&c.CC)},
		field{"primary", r.text(&c.Primary)},
		field{"metrics", r.texts(&c.Metrics)},
		field{"repeat", r.count(&c.Repeat, 1, 1000)},
		field{"warmup", r.count(&c.Warmup, 0, 1000)},
		field{"pause", r.duration(&c.Pause, 0, time.Minute)},
		field{"cpu_bound", r.bool(&c.CPUBound)},
		field{"fresh", r.bool(&c.Fresh)},
		field{"ratios", r.bool(&c.Ratios)},
	)
	if n.get("tuned") == nil {
		c.Tuned, _ = hostsBy("senders", c.Graph)
	}
	r.check(n, &c)
	return c
}

// check checks keys that depend on each other, and fills in what follows from them.
func (r *reader) check(n *node, c *Case) {
	at := func(key string) *node {
		if v := n.get(key); v != nil {
			return v
		}
		return n
	}
	if n.get("traffic") == nil {
		r.fail(n, "no traffic", "write traffic: and its parts, each with a name, such as {bulk: {kind: bulk, duration: 5s}}")
	}
	if n.get("subjects") == nil {
		r.fail(n, "no subjects", "write subjects: [cubic, bbr, tcpilot]")
		return
	}
	var names []string
	for _, s := range c.Subjects {
		names = append(names, s.Name)
	}
	if c.Baseline == "" && len(names) > 0 {
		c.Baseline = names[0]
	}
	if !slices.Contains(names, c.Baseline) {
		r.unknown(at("baseline"), "subject", c.Baseline, names)
	}
	r.metric(at("primary"), c.Primary, c.Traffic)
	for i, m := range c.Metrics {
		in := at("metrics")
		if in.kind == list {
			in = in.items[i]
		}
		r.metric(in, m, c.Traffic)
	}
	c.Metrics = append([]string{c.Primary}, slices.DeleteFunc(c.Metrics, func(m string) bool { return m == c.Primary })...)
}

// metric checks a name, METRIC or PART/METRIC.
func (r *reader) metric(at *node, name string, traffic []workload.Spec) {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		var parts []string
		for _, t := range traffic {
			parts = append(parts, t.Name)
			if t.First > 0 {
				parts = append(parts, t.Name+workload.FirstGroup, t.Name+workload.LaterGroup)
			}
		}
		if !slices.Contains(parts, name[:i]) {
			r.unknown(at, "part of the traffic", name[:i], parts)
		}
		name = name[i+1:]
	}
	if _, ok := measure.Find(name); !ok {
		var names []string
		for _, m := range measure.Metrics {
			names = append(names, m.Name)
		}
		r.unknown(at, "metric", name, names)
	}
}

func (r *reader) sysctls(to map[string]string) func(*node) {
	return func(n *node) {
		if !r.want(n, mapping) {
			return
		}
		for _, e := range n.entries {
			switch {
			case !r.want(e.value, text):
			case !strings.HasPrefix(e.key, "net."):
				r.fail(e.value, fmt.Sprintf("%q is not a sysctl of a network namespace", e.key), "write one that begins with net.")
			default:
				to[e.key] = e.value.text
			}
		}
	}
}

// tuned lists the hosts that subjects act on.
func (r *reader) tuned(n *node, g topology.Graph) (hosts []string) {
	r.each(n, func(item *node) {
		named, all := hostsBy(item.text, g)
		if len(named) == 0 {
			r.unknown(item, "host", item.text, append([]string{"senders", "receivers", "all"}, all...))
		}
		for _, h := range named {
			if !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
	})
	return hosts
}

// hostsBy finds the hosts, except routers, that a word stands for: all, a role or a name.
func hostsBy(word string, g topology.Graph) (hosts, all []string) {
	for _, h := range g.Nodes {
		if h.Role == topology.Router {
			continue
		}
		all = append(all, h.Name)
		if word == "all" || word == h.Name || word == string(h.Role)+"s" {
			hosts = append(hosts, h.Name)
		}
	}
	return hosts, all
}
