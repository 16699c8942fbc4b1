// Command tcpilot is the daemon and the command line that talks to it.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cli"
	"github.com/tcpilot/tcpilot/internal/lab/load"
)

func main() {
	load.RunIfAgent() // the demo's client and server are this program again
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// After the first signal the default action is back: a second one ends a
	// command that does not stop by itself.
	context.AfterFunc(ctx, stop)
	return cli.Main(ctx, environment(), os.Args[1:])
}

func environment() cli.Env {
	return cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Terminal:       cli.IsTerminal(os.Stdout),
		StderrTerminal: cli.IsTerminal(os.Stderr),
		Version:        version(),
		Now:            time.Now,
		Client:         api.NewClient,
		Run:            runDaemon,
		Demo:           runDemo,
		Lab:            lab(),
		Check:          check,
		Replay:         replay,
		Doctor:         doctor,
		Detach:         detach,
	}
}

// release is set by the linker (-X main.release=1.2.3); else the module's
// version is used.
var release string

func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
