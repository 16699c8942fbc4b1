// Package httpserver runs HTTP servers until they are to stop. It refuses to know what they answer.
package httpserver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Serve answers on l until ctx ends, and closes l. Requests in progress may take as long as patience then; after that
// their connections are closed.
func Serve(ctx context.Context, s *http.Server, l net.Listener, patience time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err := s.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	<-done
	return err
}
