package topology

// Role says what a host of a graph is for.
type Role string

// The roles. Senders send the bulk of the data; which side connects is the
// workload's affair.
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

// Edge is a link of a Graph. Forward is From to To: senders stand on the side of
// From, receivers on the side of To.
type Edge struct {
	Name     string
	From, To string // names of nodes
}

// Graph is a network to build. Routes are the shortest ways, ties broken by the
// order of the edges.
type Graph struct {
	Nodes []Node
	Edges []Edge
}

// Wire is a link that was built.
type Wire struct {
	Name     string
	From, To *End
}

// Layout is a Graph that was built.
type Layout struct {
	Net       *Net
	Graph     Graph
	Hosts     map[string]*Host
	Senders   []*Host // in the graph's order
	Receivers []*Host
	Wires     []*Wire // in the graph's order
}
