package subject

import (
	"context"

	"github.com/tcpilot/tcpilot/internal/lab/topology"
)

// Kind is a kind of subject.
type Kind string

// The kinds of subject.
const (
	Default Kind = "default" // what this host's kernel does by itself
	Fixed   Kind = "cc"      // one congestion control for all
	Route   Kind = "route"   // attributes of the default route, as by `ip route change`
	Tcpilot Kind = "tcpilot"
	Bpftune Kind = "bpftune"
	Command Kind = "command" // any tuner
)

// Spec says what a subject is.
type Spec struct {
	Name string // in reports, unique within a scenario
	Kind Kind
	CC   string // Fixed; of the others, the default that they begin with: the scenario's baseline's if empty
	// Route.
	InitCwnd, InitRwnd int // packets
	// Tcpilot: the rules and other parts of the configuration as YAML, without the
	// paths, which the subject adds; empty learns among all congestion controls.
	Config string
	// Command: run by sh in the tuned host's network namespace and cgroup; Begin
	// must stay in the foreground and is ended by SIGTERM if End is empty.
	Begin, End string
}

// World is where a subject acts.
type World struct {
	Net    *topology.Net
	Layout *topology.Layout
	// Tuned are the hosts that the subject tunes, Cgroups theirs, by host name.
	Tuned   []*topology.Host
	Cgroups map[string]*topology.Cgroup
	Binary  string // tcpilot
	// CC is the default congestion control of all hosts unless the subject says
	// otherwise.
	CC string
}

// Subject is one way to tune hosts. Start and Stop alternate; what it learned
// stays from one Start to the next until Close.
type Subject interface {
	Name() string
	// Learns says whether rounds before the measured ones make a difference.
	Learns() bool
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	// Close removes what was kept between rounds.
	Close() error
	// State is what the subject says of itself, for the report (JSON); nil if
	// nothing. Only while it is started.
	State(ctx context.Context) ([]byte, error)
	// Log is what its processes wrote.
	Log() string
}
