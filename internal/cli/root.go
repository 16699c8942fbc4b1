package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
)

// app is the state that the commands share: the Env and the global flags.
type app struct {
	Env
	socket string
	json   bool
	paint  painter
}

const rootLong = `tcpilot makes TCP fast on this host without touching applications, and proves it.

One daemon attaches eBPF programs, puts every new connection into a class by the
rules of its configuration, sets the options that the rules ask for, and learns
for each remote prefix which congestion control serves it best. A share of the
connections is left alone, so that the gain is always measured.

Start it with 'tcpilot run' as root; everything else asks the running daemon.
The words that read (status, paths, rules ...) take --json and then write what
the API on the socket answers.

What changes something needs root, or membership in the group that socket.admins
names. What reads goes by a socket of its own beside it (tcpilot-read.sock), which
the configuration can open to another group: socket.read.

Exit status: 0 success, 1 error, 2 wrong usage, 3 the daemon is not running.`

const rootExample = `  sudo tcpilot run                 # start with the default configuration
  tcpilot status                   # what it does, and what it cannot do here
  tcpilot paths                    # what it learned, and what that is worth
  tcpilot explain 192.0.2.7:443    # what a new connection would get, and why`

// New returns the command line.
func New(env Env) *cobra.Command {
	a := &app{Env: env, paint: painter{env.Terminal}}
	root := &cobra.Command{
		Use:     "tcpilot",
		Short:   "Tune TCP per path, by rules and by learning",
		Long:    rootLong,
		Example: rootExample,
		Args:    rootArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		// Words at this edit distance are suggested for a mistyped command.
		SuggestionsMinimumDistance: 2,
		SilenceErrors:              true, // Main writes them
		SilenceUsage:               true,
	}
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&a.socket, "socket", api.DefaultSocket, "the daemon's unix `socket`; what only reads tries the one for reading beside it first")
	cobra.CheckErr(root.MarkPersistentFlagFilename("socket", "sock"))

	root.AddGroup(
		&cobra.Group{ID: "read", Title: "Look:"},
		&cobra.Group{ID: "change", Title: "Change:"},
		&cobra.Group{ID: "file", Title: "Files:"},
	)
	for id, cmds := range map[string][]*cobra.Command{
		"read":   {a.status(), a.paths(), a.connections(), a.explain(), a.rules(), a.doctor(), a.cc(), a.loaded(), a.demo(), a.lab()},
		"change": {a.run(), a.reload(), a.rollout(), a.detach(), a.load(), a.unload()},
		"file":   {a.check(), a.record(), a.replay()},
		"":       {a.version()},
	} {
		for _, c := range cmds {
			c.GroupID = id
			root.AddCommand(c)
		}
	}
	return root
}

func rootArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	msg := fmt.Sprintf("unknown command %q", args[0])
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		msg += ": did you mean " + strings.Join(s, " or ") + "?"
	}
	return usagef("%s", msg)
}

// args takes from least to most arguments; what they are called is for the error.
func args(least, most int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, a []string) error {
		switch {
		case len(a) < least:
			return usagef("%s is missing", what)
		case len(a) > most && most == 0:
			return usagef("%q: no argument is taken", a[0])
		case len(a) > most:
			return usagef("%q: one %s is enough", a[most], what)
		}
		return nil
	}
}

// jsonFlag adds --json.
func (a *app) jsonFlag(cmd *cobra.Command, doc string) {
	cmd.Flags().BoolVar(&a.json, "json", false, doc)
}

const jsonDoc = "write the API's JSON document"

// client returns a client of the daemon.
func (a *app) client() *api.Client { return a.Client(a.socket) }

// show reads r from the daemon and writes it, rendered for people or as it is.
func show[T any](ctx context.Context, a *app, r api.Resource, render func(io.Writer, T)) error {
	doc, err := a.client().Get(ctx, r)
	if err != nil {
		return err
	}
	return emit(a, doc, render)
}

func emit[T any](a *app, doc []byte, render func(io.Writer, T)) error {
	if a.json {
		return a.print(doc)
	}
	var v T
	if err := json.Unmarshal(doc, &v); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	var b bytes.Buffer
	render(&b, v)
	return a.print(b.Bytes())
}

// emitValue is emit for what does not come from the daemon.
func emitValue[T any](a *app, v T, render func(io.Writer, T)) error {
	doc, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return emit(a, append(doc, '\n'), render)
}

// print writes everything at once, so that a full disk is noticed.
func (a *app) print(b []byte) error {
	if _, err := a.Stdout.Write(b); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// printIndented prints a JSON document for people.
func (a *app) printIndented(v any) error {
	doc, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return a.print(append(doc, '\n'))
}

// heading starts a section.
func (a *app) heading(w io.Writer, s string) { fmt.Fprintf(w, "\n%s\n", a.paint.bold(s)) }

// fileArg makes a path that the daemon, with another working directory, finds.
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
