package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
	"github.com/tcpilot/tcpilot/lab/measure"
	"github.com/tcpilot/tcpilot/lab/subject"
	"github.com/tcpilot/tcpilot/lab/topology"
	"github.com/tcpilot/tcpilot/lab/workload"
)

// readCase reads a case into which everything that it inherits is merged.
func (r *reader) readCase(n *node) Case {
	c := Case{Repeat: 5, Primary: "goodput", Sysctls: map[string]string{}}
	// The network is read first, because other keys refer to names in it.
	t := n.Get("topology")
	if t == nil {
		r.Fail(n.Place, "no topology", "write topology: {kind: dumbbell}")
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
	if n.Get("tuned") == nil {
		c.Tuned, _ = hostsBy("senders", c.Graph)
	}
	r.check(n, &c)
	return c
}

// check checks keys that depend on each other, and fills in what follows from them.
func (r *reader) check(n *node, c *Case) {
	at := func(key string) *node {
		if v := n.Get(key); v != nil {
			return v
		}
		return n
	}
	if n.Get("traffic") == nil {
		r.Fail(n.Place, "no traffic", "write traffic: and its parts, each with a name, such as {bulk: {kind: bulk, duration: 5s}}")
	}
	if n.Get("subjects") == nil {
		r.Fail(n.Place, "no subjects", "write subjects: [cubic, bbr, tcpilot]")
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
		r.Unknown(at("baseline").Place, "subject", c.Baseline, names, "")
	}
	r.metric(at("primary").Place, c.Primary, c.Traffic)
	for i, m := range c.Metrics {
		in := at("metrics")
		if in.Kind == yamlfile.List {
			in = in.Items[i]
		}
		r.metric(in.Place, m, c.Traffic)
	}
	r.connects(at("subjects"), c)
	c.Metrics = append([]string{c.Primary}, slices.DeleteFunc(c.Metrics, func(m string) bool { return m == c.Primary })...)
}

// connects checks that every subject connects pods if the network has pods, and that no
// subject does otherwise.
func (r *reader) connects(at *node, c *Case) {
	for i, s := range c.Subjects {
		in := at
		if at.Kind == yamlfile.List && i < len(at.Items) {
			in = at.Items[i]
		}
		switch is := s.Kind == subject.Pods; {
		case is && len(c.Graph.Pods) == 0:
			r.Fail(in.Place, fmt.Sprintf("subject %s connects pods, and the network has none", s.Name), "write topology: {kind: pods}")
		case !is && len(c.Graph.Pods) > 0:
			r.Fail(in.Place, fmt.Sprintf("subject %s does not connect the network's pods", s.Name), "write pods: veth, or cni: and a list of plugins, beside its other keys")
		case s.Join == topology.JoinHost && (len(c.Graph.Pods) != 2 || len(c.Links) > 0):
			r.Fail(in.Place, "pods: host joins two pods directly, without links between them", "use it in a case with two pods and without links")
		}
	}
}

// metric checks a name, METRIC or PART/METRIC.
func (r *reader) metric(at yamlfile.Place, name string, traffic []workload.Spec) {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		var parts []string
		for _, t := range traffic {
			parts = append(parts, t.Name)
			if t.First > 0 {
				parts = append(parts, t.Name+workload.FirstGroup, t.Name+workload.LaterGroup)
			}
		}
		if !slices.Contains(parts, name[:i]) {
			r.Unknown(at, "part of the traffic", name[:i], parts, "")
		}
		name = name[i+1:]
	}
	if _, ok := measure.Find(name); !ok {
		var names []string
		for _, m := range measure.Metrics {
			names = append(names, m.Name)
		}
		r.Unknown(at, "metric", name, names, "")
	}
}

func (r *reader) sysctls(to map[string]string) func(*node) {
	return func(n *node) {
		if !r.Want(n, yamlfile.Mapping) {
			return
		}
		for _, e := range n.Entries {
			switch {
			case !r.Want(e.Value, yamlfile.Text):
			case !strings.HasPrefix(e.Key, "net."):
				r.Fail(e.Value.Place, fmt.Sprintf("%q is not a sysctl of a network namespace", e.Key), "write one that begins with net.")
			default:
				to[e.Key] = e.Value.Text
			}
		}
	}
}

// tuned lists the hosts that subjects act on.
func (r *reader) tuned(n *node, g topology.Graph) (hosts []string) {
	for _, item := range r.Values(n) {
		if !r.Want(item, yamlfile.Text) {
			continue
		}
		named, all := hostsBy(item.Text, g)
		if len(named) == 0 {
			r.Unknown(item.Place, "host", item.Text, append([]string{"senders", "receivers", "all"}, all...), "")
		}
		for _, h := range named {
			if !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
	}
	return hosts
}

// hostsBy finds the hosts, except routers, that a word selects: all, a role in the plural,
// or a name.
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
