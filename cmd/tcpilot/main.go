// Command tcpilot is the daemon and the command line that talks to it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cli"
	"github.com/tcpilot/tcpilot/internal/console"
)

func main() {
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
		Streams: console.Standard(),
		Version: version(),
		Now:     time.Now,
		Client:  api.NewClient,
		Run:     runDaemon,
		Lab:     becomeLab,
		AskLab:  askLab,
		Check:   check,
		Replay:  replay,
		Doctor:  doctor,
		Detach:  detach,
	}
}

// release is set by the linker (-X main.release=1.2.3).
var release string

func version() string { return console.Version(release) }
