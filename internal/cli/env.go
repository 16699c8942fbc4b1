package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/record"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// DefaultConfig is the configuration file that is read if it exists.
const DefaultConfig = "/etc/tcpilot/tcpilot.yaml"

// Env is the world of a command. main fills it in; tests replace parts of it.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Terminal: Stdout is one, so that output may be coloured and redrawn;
	// StderrTerminal: progress may be shown there.
	Terminal, StderrTerminal bool
	Version                  string
	Now                      func() time.Time
	Client                   func(socket string) *api.Client

	// Run is the daemon; it returns when ctx ends or it was told to detach.
	Run func(ctx context.Context, o RunOptions) error
	// Demo shows in a network of its own what tcpilot does.
	Demo func(ctx context.Context) error
	Lab  Lab
	// Check reads a configuration without using it. Every error of the file is
	// in the one returned (errors.Join), each as file:line:column: text.
	Check func(ctx context.Context, file string) (Checked, error)
	// Replay feeds samples to a new engine and returns what it knows afterwards.
	Replay func(ctx context.Context, o ReplayOptions) (*engine.Snapshot, error)
	// Doctor tries out what the kernel allows while no daemon runs.
	Doctor func(ctx context.Context, o RunOptions) (api.Doctor, error)
	// Detach takes back what a daemon that no longer runs left behind, and says
	// what that was.
	Detach func(ctx context.Context, o RunOptions) (Detached, error)
}

// RunOptions are the flags of run, and of what acts in the daemon's stead.
type RunOptions struct {
	Config       string // file; empty: DefaultConfig if it exists, else built-in defaults
	Socket       string
	KeepAttached bool // leave programs and policies in the kernel at the end
}

// Checked is a configuration that is valid.
type Checked struct {
	File     string             `json:"file"`
	Rules    []engine.RuleState `json:"rules"`
	Warnings []string           `json:"warnings,omitempty"`
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

// Detached is what was taken back.
type Detached struct {
	Undone []string `json:"undone"` // "detach program tcpilot_sockops from /sys/fs/cgroup", ...
}

// Exit codes.
const (
	ExitOK         = 0
	ExitError      = 1
	ExitUsage      = 2
	ExitNotRunning = 3
)

// usageError is a command line that makes no sense.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// silent is an error whose text was already written.
type silent struct{ err error }

func (e silent) Error() string { return e.err.Error() }
func (e silent) Unwrap() error { return e.err }

// Main runs the command line args (without the program's name) and returns the
// exit code.
func Main(ctx context.Context, env Env, args []string) int {
	root := New(env)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	if interrupted(ctx, err) {
		return ExitError // the user knows
	}
	var (
		quiet   silent
		usage   usageError
		missing *api.NotRunningError
		answer  *api.Error
	)
	if !errors.As(err, &quiet) {
		fmt.Fprintf(env.Stderr, "tcpilot: %v\n", err)
	}
	switch {
	case errors.As(err, &usage):
		fmt.Fprintf(env.Stderr, "See '%s --help'.\n", cmd.CommandPath())
		return ExitUsage
	case errors.As(err, &missing):
		return ExitNotRunning
	case errors.As(err, &answer) && answer.Hint != "":
		fmt.Fprintf(env.Stderr, "hint: %s\n", answer.Hint)
	}
	return ExitError
}

// interrupted reports whether err is only the end of ctx, which the user asked
// for with Ctrl-C.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}

// IsTerminal reports whether f is a terminal that understands escape sequences.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == ""
}
