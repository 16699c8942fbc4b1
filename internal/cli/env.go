package cli

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"net/netip"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/record"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Env is what commands use outside this package. main fills it in; tests replace parts of it.
type Env struct {
	console.Streams
	Version string
	Now     func() time.Time
	Client  func(socket string) *api.Client

	// Run is the daemon; it returns when ctx ends or it was told to detach.
	Run func(ctx context.Context, o RunOptions) error
	// ExecLab runs the program tcpilot-lab with these arguments in place of this process;
	// it returns if it cannot.
	ExecLab func(args []string) error
	// LabOutput runs the same program to its end, and returns what it wrote.
	LabOutput func(ctx context.Context, args []string) ([]byte, error)
	// Check reads a configuration without using it. Every error of the file is
	// in the one returned (errors.Join), each as file:line:column: text.
	Check func(ctx context.Context, file string) (Checked, error)
	// Replay feeds samples to a new engine and returns what it knows afterwards.
	Replay func(ctx context.Context, o ReplayOptions) (*engine.Snapshot, error)
	// Doctor tries out what the kernel allows while no daemon runs.
	Doctor func(ctx context.Context, o RunOptions) (api.Doctor, error)
	// Detach removes what a daemon that no longer runs left in the kernel, and returns
	// what that was.
	Detach func(ctx context.Context, o RunOptions) (Detached, error)
	// InstallCNI adds the CNI plugin to the node's network configuration, and UninstallCNI removes it.
	InstallCNI   func(o CNIOptions) (CNIChange, error)
	UninstallCNI func(o CNIOptions) (CNIChange, error)
	// PodCIDRs asks the API server of Kubernetes for the networks of this node's pods.
	PodCIDRs func(ctx context.Context, o CNIOptions) ([]netip.Prefix, error)
	// CollectCNI removes what pods have left whose DEL was missed. done is called after each of them.
	CollectCNI func(ctx context.Context, o CNIOptions, done func(CNIAttachment)) (CNICollected, error)
	// Hold loads one of tcpilot's congestion controls until release, without a daemon.
	Hold func(name string) (release func() error, err error)
}

// RunOptions are the flags of run, and of the commands that work without a daemon.
type RunOptions struct {
	Config       string // file; empty: config.DefaultFile if it exists, else built-in defaults
	Socket       string // empty: the configuration's
	KeepAttached bool   // leave programs and policies in the kernel at the end
	Pods         bool   // of detach: only the programs at the devices of pods
}

// Checked is a configuration that is valid.
type Checked struct {
	File     string             `json:"file"`
	Rules    []engine.RuleState `json:"rules"`
	Warnings []string           `json:"warnings,omitempty"`
	Bypassed []string           `json:"bypassed,omitempty"` // what of the host packets will not pass
}

// ReplayOptions are the flags of replay.
type ReplayOptions struct {
	Config string // as in RunOptions
	// Learner overrides the configuration's; empty leaves it.
	Learner string
	Meta    record.Meta
	// Samples yields every readable sample of the file; each is overwritten by
	// the next.
	Samples iter.Seq[*tcp.Sample]
}

// Detached is what was removed.
type Detached struct {
	Daemon bool     `json:"daemon"` // a daemon ran: it removes what is asked for
	Undone []string `json:"undone"` // "detach program tcpilot_sockops from /sys/fs/cgroup", ...
	// Examined are the directories in which was looked; none if a daemon ran.
	Examined []string `json:"examined,omitempty"`
}

// Main runs the command line args (without the program's name) and returns the
// exit code.
func Main(ctx context.Context, env Env, args []string) int {
	return console.Run(ctx, New(env), env.Stderr, args, explainError)
}

// rootError is an error of a command that needs root.
type rootError struct{ error }

func (e rootError) Unwrap() error { return e.error }

// explainError returns the exit code and the hint for an error of the daemon, for a daemon that
// does not run, or for a command that lacks privileges.
func explainError(err error) (code int, hint string) {
	var (
		missing *api.NotRunningError
		answer  *api.Error
		root    rootError
	)
	switch {
	case errors.As(err, &missing):
		return console.ExitNotRunning, ""
	case errors.As(err, &answer):
		return console.ExitError, answer.Hint
	case errors.As(err, &root) && errors.Is(err, fs.ErrPermission):
		return console.ExitError, "be root (sudo); a container needs the capabilities that docs/security.md lists"
	}
	return console.ExitError, ""
}
