package testenv

import (
	"context"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// CloseOnSignal calls c.Close when the process gets SIGINT or SIGTERM, and then lets the signal
// end the process: cleanup functions of tests do not run on Ctrl-C.
func CloseOnSignal(c io.Closer) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	go func() {
		defer signal.Stop(signals)
		select {
		case <-ctx.Done():
		case s := <-signals:
			c.Close()
			signal.Reset(s)
			unix.Kill(os.Getpid(), s.(unix.Signal))
		}
	}()
	return cancel
}
