// Command tcpilot is the daemon and the command line that talks to it.
package main

import (
	"context"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cc"
	"github.com/tcpilot/tcpilot/internal/cli"
	"github.com/tcpilot/tcpilot/internal/console"
)

func main() {
	console.Process(func(ctx context.Context, args []string) int { return cli.Main(ctx, environment(), args) })
}

func environment() cli.Env {
	return cli.Env{
		Streams:   console.Standard(),
		Version:   version(),
		Now:       time.Now,
		Client:    api.NewClient,
		Run:       runDaemon,
		ExecLab:   execLab,
		LabOutput: labOutput,
		Check:     check,
		Replay:    replay,
		Doctor:    doctor,
		Detach:    detach,
		Hold:      cc.Hold,

		InstallCNI: installCNI, UninstallCNI: uninstallCNI, CollectCNI: collectCNI, PodCIDRs: podCIDRs,
	}
}

// release is set by the linker (-X main.release=1.2.3).
var release string

func version() string { return console.Version(release) }
