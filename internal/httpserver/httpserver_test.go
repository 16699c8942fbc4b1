package httpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// A request in progress is answered after ctx has ended, unless it takes longer than the server's patience.
func TestServeFinishesRequests(t *testing.T) {
	for name, c := range map[string]struct {
		patience time.Duration
		answered bool
	}{"patient": {time.Minute, true}, "impatient": {time.Millisecond, false}} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stopping, finish := make(chan struct{}), make(chan struct{})
			s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				cancel()
				<-finish
				_, _ = io.WriteString(w, "answer")
			})}
			s.RegisterOnShutdown(func() { close(stopping) })
			served := make(chan error, 1)
			go func() { served <- Serve(ctx, s, l, c.patience) }()
			go func() {
				<-stopping
				if !c.answered {
					if err := <-served; err != nil { // without an answer
						t.Error(err)
					}
				}
				close(finish)
			}()
			r, err := http.Get("http://" + l.Addr().String())
			if err == nil {
				r.Body.Close()
			}
			if (err == nil) != c.answered {
				t.Errorf("the request: %v", err)
			}
			if c.answered {
				if err := <-served; err != nil {
					t.Error(err)
				}
			}
			if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
				t.Error("the listener is open")
			}
		})
	}
}

func TestServeReturnsErrorsOfTheListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Serve(t.Context(), &http.Server{}, l, time.Second); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
