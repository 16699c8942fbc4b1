package console

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Process is what main does: it runs a command line until it ends or SIGINT or SIGTERM
// asks it to, and exits with its code.
func Process(run func(ctx context.Context, args []string) (code int)) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the default action is back: a second one ends a
	// command that does not stop by itself.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:]))
}
