package subject

import (
	"context"
	"errors"
	"fmt"

	"github.com/tcpilot/tcpilot/internal/undo"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// Kind is a kind of subject.
type Kind string

// The kinds of subject.
const (
	Default Kind = "default" // the kernel's defaults
	Fixed   Kind = "cc"      // one congestion control for all connections of the tuned hosts
	Route   Kind = "route"   // initial windows on all routes, as by `ip route change`
	Tcpilot Kind = "tcpilot"
	Bpftune Kind = "bpftune"
	Command Kind = "command" // any tuner
	Pods    Kind = "pods"    // a way to connect pods, with tcpilot on their nodes if it has a Config
)

// Spec says what a subject is.
type Spec struct {
	Name string // in reports, unique within a scenario
	Kind Kind
	// CC is the congestion control of Fixed. For other kinds it is the default congestion
	// control at the start; empty is World.CC.
	CC string
	// Route.
	InitCwnd, InitRwnd int // packets; 0 leaves the route's
	// Pods: either one of the ways without plugins, or a chain of CNI plugins.
	Join    topology.Join
	Plugins []Plugin
	// Annotations are those of each pod.
	Annotations map[string]string
	// Tcpilot: the rules and other parts of the configuration as YAML, without the
	// paths, which the subject adds; empty learns among all congestion controls. Pods: the
	// same for a daemon on each node; empty is no daemon.
	Config string
	// Command, in the tuned host's network namespace and cgroup, by sh. Without End,
	// Begin stays in the foreground and its process group is ended by SIGTERM. With
	// End, Begin runs to its end before the traffic, and End undoes it, with all that
	// Begin left running. Both find TCPILOT_LAB_HOST (the name), TCPILOT_LAB_CGROUP
	// and TCPILOT_LAB_DIR (a directory that stays from Start to Start) in their
	// environment.
	Begin, End string
}

// World is where a subject acts.
type World struct {
	Net    *topology.Net
	Layout *topology.Layout
	// Tuned are the hosts that the subject tunes. Cgroups are the cgroups of these and of
	// the nodes of pods, by host name.
	Tuned   []*topology.Host
	Cgroups map[string]*topology.Cgroup
	Binary  string // tcpilot
	// CC is the default congestion control of all hosts unless the subject says
	// otherwise; empty is the machine's.
	CC string
	// Default is the default subject's congestion control; empty is the machine's.
	Default string
	// Fresh has tcpilot forget at each Stop what it learned.
	Fresh bool
	// Others are the congestion controls that the applications of the traffic set
	// themselves.
	Others []string
}

// Subject is one way to tune hosts. Start and Stop alternate. What it learned stays from one
// Start to the next until Close, unless Forgets is true.
type Subject interface {
	Name() string
	// Learns reports whether the subject needs warm-up rounds before the measured ones.
	Learns() bool
	// Forgets reports whether Stop drops what it learned, so that it needs a warm-up after
	// every Start.
	Forgets() bool
	// Start returns when the subject is ready. If it fails, it has undone its changes.
	Start(ctx context.Context) error
	// Stop undoes Start, also if ctx has ended. A process that does not end within a minute
	// of SIGTERM is killed. That is an error, and so is a process that ended before. Without
	// a Start it does nothing.
	Stop(ctx context.Context) error
	// Close stops the subject and removes what it kept between rounds.
	Close() error
	// State is what the subject reports about itself, as JSON; nil if it reports nothing or
	// is not started.
	State(ctx context.Context) ([]byte, error)
	// Log is what its processes wrote: the last 64 KiB of each host's.
	Log() string
}

// ErrUnavailable is wrapped by errors that say why this machine cannot run a subject.
var ErrUnavailable = errors.New("not available here")

// tuner is the part of a subject that its kind makes.
type tuner interface {
	// begin starts tuning. The steps that undo what it did are in u, also if it fails.
	begin(ctx context.Context, u *undo.Stack) error
	state(ctx context.Context) ([]byte, error)
	log() string
	close() error
}

// New makes a subject and checks whether it can run here. It changes nothing.
func New(s Spec, w World) (Subject, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	if w.Layout != nil && len(w.Layout.Pods) > 0 && s.Kind != Pods {
		return nil, fmt.Errorf("subject %s: %w: it does not connect the network's pods", s.Name, ErrUnavailable)
	}
	t, err := newTuner(s, w)
	if err != nil {
		return nil, fmt.Errorf("subject %s: %w", s.Name, err)
	}
	if s.CC != "" {
		if err := w.tryCongestion(s.CC); err != nil {
			return nil, fmt.Errorf("subject %s: %w", s.Name, err)
		}
	}
	return &subject{spec: s, world: w, tuner: t}, nil
}

func newTuner(s Spec, w World) (tuner, error) {
	switch s.Kind {
	case Route:
		return &route{spec: s, hosts: w.Tuned}, nil
	case Tcpilot:
		return newTcpilot(s, w)
	case Bpftune:
		return newBpftune(s, w)
	case Command:
		return newCommand(s, w)
	case Pods:
		return newPods(s, w)
	}
	return none{}, nil // only the congestion control is set
}

// none tunes nothing.
type none struct{}

func (none) begin(context.Context, *undo.Stack) error { return nil }
func (none) state(context.Context) ([]byte, error)    { return nil, nil }
func (none) log() string                              { return "" }
func (none) close() error                             { return nil }

// subject is a tuner with what all kinds have: the congestion control with which hosts
// begin, and the steps to undo.
type subject struct {
	spec    Spec
	world   World
	tuner   tuner
	started bool
	undo    undo.Stack
}

func (s *subject) Name() string { return s.spec.Name }

// Learns is true for a command, because it is not known whether it learns.
func (s *subject) Learns() bool {
	switch s.spec.Kind {
	case Tcpilot:
		return configLearns(s.spec.Config)
	case Pods:
		return s.spec.Config != "" && configLearns(s.spec.Config)
	}
	return s.spec.Kind == Bpftune || s.spec.Kind == Command
}

// Forgets is true for bpftune, whose maps end with its process, and for a command, because
// it is not known what it keeps.
func (s *subject) Forgets() bool {
	return s.spec.Kind == Bpftune || s.spec.Kind == Command || s.world.Fresh
}

func (s *subject) Start(ctx context.Context) error {
	if s.started {
		return errors.New("it is started")
	}
	err := s.setCongestion(ctx)
	if err == nil {
		err = s.tuner.begin(ctx, &s.undo)
	}
	if err != nil {
		return errors.Join(err, s.undo.Run())
	}
	s.started = true
	return nil
}

func (s *subject) Stop(context.Context) error {
	s.started = false
	return s.undo.Run()
}

func (s *subject) Close() error {
	return errors.Join(s.Stop(context.Background()), s.tuner.close())
}

func (s *subject) State(ctx context.Context) ([]byte, error) {
	if !s.started {
		return nil, nil
	}
	return s.tuner.state(ctx)
}

func (s *subject) Log() string { return s.tuner.log() }
