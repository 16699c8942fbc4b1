package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestTasksAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer
		s := newSupervisor(slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		var starts []time.Duration
		begun := time.Now()
		other := 0
		done := make(chan error, 1)
		go func() {
			done <- s.run(ctx, []task{
				{"flaky", func(ctx context.Context) error {
					starts = append(starts, time.Since(begun))
					if len(starts) < 10 {
						return errors.New("not yet")
					}
					<-ctx.Done()
					return ctx.Err()
				}},
				{"other", func(ctx context.Context) error { other++; <-ctx.Done(); return nil }},
			})
		}()
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if p := s.problems(); len(p) != 1 || !strings.Contains(p[0], "task flaky") || !strings.Contains(p[0], "not yet") {
			t.Errorf("problems %q", p)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if p := s.problems(); len(p) != 0 {
			t.Errorf("problems %q of a task that works", p)
		}
		// 1 + 2 + 4 + ... + 32, then a minute each.
		if want := "[0s 1s 3s 7s 15s 31s 1m3s 2m3s 3m3s 4m3s]"; fmt.Sprint(starts) != want {
			t.Errorf("started at %v, want %v", starts, want)
		}
		if other != 1 {
			t.Errorf("the other task was started %d times", other)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "task failed"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, log.String())
		}
		if !strings.Contains(log.String(), "task works again") {
			t.Errorf("log:\n%s", log.String())
		}
	})
}

func TestPermanentFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSupervisor(slog.New(slog.DiscardHandler))
		stopped := false
		err := s.run(t.Context(), []task{
			{"lease", func(context.Context) error { return fmt.Errorf("write runtime configuration: %w", unix.EBADF) }},
			{"other", func(ctx context.Context) error { <-ctx.Done(); stopped = true; return nil }},
		})
		if err == nil || !strings.HasPrefix(err.Error(), "lease: write runtime configuration") || !stopped {
			t.Errorf("%v, the other task stopped: %v", err, stopped)
		}
	})
}
