package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/experiment"
	"github.com/tcpilot/tcpilot/lab/report"
)

// Env is the environment of a command. main fills it in; tests replace parts of it.
type Env struct {
	console.Streams
	Version string

	// Tcpilot finds the program tcpilot, which experiments start.
	Tcpilot func() (string, error)
	// Demo shows in a network of its own what the program tcpilot does.
	Demo func(ctx context.Context, tcpilot string) error
	// Run runs experiments and writes their records to o.Out.
	Run func(ctx context.Context, o experiment.Options, about report.Run) error
	// Calibrate measures the links of scenarios, and calls tell for each path.
	Calibrate func(ctx context.Context, o experiment.Options, tell func(experiment.Calibration)) error
	// Clean removes what killed runs left, and returns the names.
	Clean func() (removed []string, err error)
	// VM runs this program with other arguments under another kernel.
	VM func(ctx context.Context, o VMOptions) error
}

// VMOptions say what to run under another kernel.
type VMOptions struct {
	Kernel      string
	VirtualTime bool // its clock counts instructions
	Args        []string
	Dir         string // the only directory that it may write to; empty is none
	Limit       time.Duration
	Stdout      io.Writer
	Stderr      io.Writer
}

// app is the state that the commands share.
type app struct {
	Env
	*console.Output
}

// newRoot returns the command line.
func newRoot(env Env) *cobra.Command {
	a := &app{Env: env, Output: console.NewOutput(env.Streams)}
	root := &cobra.Command{
		Use:         "tcpilot-lab",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "tcpilot lab"},
		Short:       "Measure what tcpilot does, on emulated networks on this machine",
		Long: `Experiments: networks of namespaces on this machine, links that delay, lose and
queue, real traffic, and several subjects that take turns: the kernel's default,
each congestion control, initial windows by route, tcpilot, bpftune if it is
installed, or any command that starts a tuner.

A run uses only namespaces and cgroups of its own, and removes them at the end, also
after Ctrl-C. What a killed run left is removed by the next run, or by 'tcpilot lab
clean'.

The program is tcpilot-lab; 'tcpilot lab' starts it. It looks for tcpilot in its own
directory, then in PATH.`,
		Example: `  tcpilot lab list
  sudo tcpilot lab run loss --quick
  sudo tcpilot lab run loss delay --out today.jsonl.gz --html today.html
  tcpilot lab compare yesterday.jsonl.gz today.jsonl.gz`,
	}
	console.Root(root, env.Version)
	env.Attach(root)
	root.AddCommand(a.list(), a.show(), a.run(), a.calibrate(), a.report(), a.compare(), a.clean(), a.demo(),
		console.VersionCommand(a.Output, a.Version))
	for _, sub := range root.Commands() {
		completeFlags(sub)
	}
	return root
}

// Main runs the command line args (without the program's name) and returns the exit
// code.
func Main(ctx context.Context, env Env, args []string) int {
	return console.Run(ctx, newRoot(env), env.Stderr, args, explainError)
}

// explainError adds a hint to the error of a command that lacks privileges.
func explainError(err error) (code int, hint string) {
	if errors.Is(err, fs.ErrPermission) {
		hint = "be root (sudo)"
	}
	return console.ExitError, hint
}

func (a *app) demo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Show what tcpilot does, on a lossy link between namespaces",
		Long: `Show in a minute what tcpilot does: three network namespaces, a link that loses
packets, and bulk connections one after the other, without tcpilot and with it. It
needs root. Nothing else on this machine is changed, and all is removed at the end.`,
		Example: "  sudo tcpilot demo",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			tcpilot, err := a.Tcpilot()
			if err != nil {
				return err
			}
			return a.Demo(cmd.Context(), tcpilot)
		},
	}
}
