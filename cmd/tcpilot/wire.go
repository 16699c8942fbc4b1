package main

import (
	"context"
	"os"
	"runtime"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cli"
	"github.com/tcpilot/tcpilot/internal/daemon"
	"github.com/tcpilot/tcpilot/internal/engine"
)

func runDaemon(ctx context.Context, o cli.RunOptions) error {
	// One thread of Go code at a time is enough for some thousand samples a second. With more, Go spends as much
	// CPU time on spreading that work as the work takes.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	return daemon.Run(ctx, daemon.Options{
		Config: o.Config, Socket: o.Socket, KeepAttached: o.KeepAttached, Version: version(),
	})
}

func check(_ context.Context, file string) (cli.Checked, error) {
	rules, err := daemon.Check(file)
	if err != nil {
		return cli.Checked{}, err
	}
	warnings, err := daemon.Warnings(file)
	if err != nil {
		return cli.Checked{}, err
	}
	bypassed, err := daemon.Bypassed(file)
	return cli.Checked{File: file, Rules: rules, Warnings: warnings, Bypassed: bypassed}, err
}

func replay(ctx context.Context, o cli.ReplayOptions) (*engine.Snapshot, error) {
	return daemon.Replay(ctx, o.Config, o.Learner, o.Meta, o.Samples)
}

func doctor(_ context.Context, o cli.RunOptions) (api.Doctor, error) { return daemon.Doctor(o.Config) }

func detach(_ context.Context, o cli.RunOptions) (cli.Detached, error) {
	examined, err := daemon.Examined(o.Config, o.Socket)
	if err != nil {
		return cli.Detached{}, err
	}
	undo := daemon.Detach
	if o.Pods {
		undo = daemon.DetachPods
	}
	undone, err := undo(o.Config)
	return cli.Detached{Undone: undone, Examined: examined}, err
}
