package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/console"
)

// app is the state that the commands share: the Env and the global flags.
type app struct {
	Env
	*console.Output
	socket string
}

const rootLong = `tcpilot makes TCP fast on this host without changes to applications, and measures the
gain.

One daemon attaches eBPF programs, puts every new connection into a class by the
rules of its configuration, sets the options that the rules name, and learns for
each remote prefix which congestion control is best. A share of the connections
keeps the kernel's defaults, so that the gain is always measured.

Start it with 'tcpilot run' as root; all other commands ask the running daemon.
With --json, they write the answer of the API on the socket.

Commands that change something need root, or membership in the group that
socket.admins names. Commands that only read use a second socket
(tcpilot-read.sock), which the configuration can open to another group: socket.read.

Exit status: 0 success, 1 error, 2 wrong usage, 3 the daemon is not running.`

const rootExample = `  sudo tcpilot run                 # start with the default configuration
  tcpilot status                   # what it does, and what it cannot do here
  tcpilot paths                    # what it learned, and what that is worth
  tcpilot explain 192.0.2.7:443    # what a new connection would get, and why`

// New returns the command line.
func New(env Env) *cobra.Command {
	a := &app{Env: env, Output: console.NewOutput(env.Streams)}
	root := &cobra.Command{
		Use:     "tcpilot",
		Short:   "Tune TCP per path, by rules and by learning",
		Long:    rootLong,
		Example: rootExample,
	}
	console.Root(root, env.Version)
	env.Attach(root)
	root.PersistentFlags().StringVar(&a.socket, "socket", config.Default().Socket.Path, "the daemon's unix `SOCKET`; commands that only read try the socket for reading beside it first")
	cobra.CheckErr(root.MarkPersistentFlagFilename("socket", "sock"))

	root.AddGroup(
		&cobra.Group{ID: "read", Title: "Look:"},
		&cobra.Group{ID: "change", Title: "Change:"},
		&cobra.Group{ID: "file", Title: "Files:"},
	)
	for id, cmds := range map[string][]*cobra.Command{
		"read":   {a.status(), a.paths(), a.connections(), a.explain(), a.rules(), a.pods(), a.doctor(), a.cc(), a.prog(), a.demo(), a.lab()},
		"change": {a.run(), a.reload(), a.rollout(), a.detach(), a.cni()},
		"file":   {a.check(), a.record(), a.replay()},
		"":       {console.VersionCommand(a.Output, a.Version)},
	} {
		for _, c := range cmds {
			c.GroupID = id
			root.AddCommand(c)
		}
	}
	return root
}

const jsonDoc = "write the API's JSON document"

// client returns a client of the daemon.
func (a *app) client() *api.Client { return a.Client(a.socket) }

// show reads r from the daemon and writes it, as text or as JSON.
func show[T any](ctx context.Context, a *app, r api.Resource, render func(io.Writer, T)) error {
	doc, err := a.client().Get(ctx, r)
	if err != nil {
		return err
	}
	return console.Emit(a.Output, doc, render)
}

// fileArg makes a path absolute, because the daemon has another working directory.
func fileArg(path string) (string, error) {
	if strings.HasPrefix(path, "/") {
		return path, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find working directory: %w", err)
	}
	return dir + "/" + strings.TrimPrefix(path, "./"), nil
}
