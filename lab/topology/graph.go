package topology

import (
	"fmt"
	"regexp"
	"slices"
)

// Role is the part that a host plays in a graph.
type Role string

// The roles. Senders send most of the data; the workload decides which side
// connects. Senders and receivers have one link each, routers any number.
const (
	Sender   Role = "sender"
	Receiver Role = "receiver"
	Router   Role = "router"
)

// Node is a host of a Graph.
type Node struct {
	Name string
	Role Role
}

// Edge is a link of a Graph. Forward is From to To: senders are on the From side,
// receivers on the To side.
type Edge struct {
	Name     string // of the link, and of its device at both ends
	From, To string // names of nodes
}

// Graph is a network to build. Routes are shortest paths, the same in both directions; of
// equally long ones, the one without the later edges is used (see cost).
type Graph struct {
	Nodes []Node
	Edges []Edge
	// Pods are the senders and receivers that have no link of their own, because a
	// subject connects them to their node.
	Pods []Place
}

// maxEdges is the number of links that the third byte of IPv4 addresses can distinguish.
const maxEdges = 256

// names matches names that are valid for a device, a namespace and a sysctl: IFNAMSIZ
// allows 15 characters.
var names = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,14}$`)

// reserved are names that no link may have: the device of every namespace, and the two
// names in the sysctls of devices that stand for all of them.
var reserved = []string{"lo", "all", "default"}

// Check returns an error if the graph cannot be built.
func (g Graph) Check() error {
	links := map[string]int{}
	senders, receivers := 0, 0
	for _, n := range g.Nodes {
		if err := checkName(n.Name); err != nil {
			return fmt.Errorf("node %w", err)
		}
		if _, ok := links[n.Name]; ok {
			return fmt.Errorf("node %s is defined twice", n.Name)
		}
		links[n.Name] = 0
		switch n.Role {
		case Sender:
			senders++
		case Receiver:
			receivers++
		case Router:
		default:
			return fmt.Errorf("node %s: unknown role %q; the roles are sender, receiver and router", n.Name, n.Role)
		}
	}
	if senders == 0 || receivers == 0 {
		return fmt.Errorf("%d senders and %d receivers: a network needs at least one of each", senders, receivers)
	}
	if err := g.checkEdges(links); err != nil {
		return err
	}
	if err := g.checkPods(links); err != nil {
		return err
	}
	next := g.toward(g.place(g.Nodes[0].Name))
	for _, n := range g.Nodes {
		if _, ok := next[g.place(n.Name)]; !ok && g.place(n.Name) != g.place(g.Nodes[0].Name) {
			return fmt.Errorf("no path of links from %s to %s", g.Nodes[0].Name, n.Name)
		}
		if n.Role != Router && !g.isPod(n.Name) && links[n.Name] != 1 {
			return fmt.Errorf("%s %s has %d links: only a router has more than one", n.Role, n.Name, links[n.Name])
		}
	}
	return nil
}

// checkEdges checks each edge and counts those of each node.
func (g Graph) checkEdges(links map[string]int) error {
	if len(g.Edges) > maxEdges {
		return fmt.Errorf("%d links, at most %d", len(g.Edges), maxEdges)
	}
	for i, e := range g.Edges {
		if err := checkName(e.Name); err != nil {
			return fmt.Errorf("link %w", err)
		}
		if slices.ContainsFunc(g.Edges[:i], func(o Edge) bool { return o.Name == e.Name }) {
			return fmt.Errorf("link %s is defined twice", e.Name)
		}
		for _, end := range []string{e.From, e.To} {
			if _, ok := links[end]; !ok {
				return fmt.Errorf("link %s: there is no node %q", e.Name, end)
			}
			links[end]++
		}
		if e.From == e.To {
			return fmt.Errorf("link %s connects %s to itself", e.Name, e.From)
		}
	}
	return nil
}

func checkName(name string) error {
	if !names.MatchString(name) {
		return fmt.Errorf("%q: a name has 1 to 15 letters, digits, - and _, and begins with a letter or digit", name)
	}
	if slices.Contains(reserved, name) {
		return fmt.Errorf("%q: the name is reserved by the kernel", name)
	}
	return nil
}
