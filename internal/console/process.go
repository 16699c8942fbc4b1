package console

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Process is the body of main: it runs a command line until it ends, or until SIGINT or
// SIGTERM, and exits with its code.
func Process(run func(ctx context.Context, args []string) (code int)) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal restores the default action, so that a second signal ends a command
	// that does not stop.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:]))
}
