package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// task is a part of the daemon that runs until its context ends.
type task struct {
	name string
	run  func(context.Context) error
}

// supervisor runs tasks. A task that fails is started again after a pause, which doubles with
// each failure; the other tasks continue.
type supervisor struct {
	log *slog.Logger
	// first and longest bound the pause. A task that ran for settled counts as working again.
	first, longest, settled time.Duration

	mu      sync.Mutex
	failing map[string]failure
}

// failure is the state of a task that does not work now.
type failure struct {
	err   error
	since time.Time
	tries int
}

func newSupervisor(log *slog.Logger) *supervisor {
	return &supervisor{
		log: log, failing: map[string]failure{},
		first: time.Second, longest: time.Minute, settled: 10 * time.Second,
	}
}

// run returns when ctx ends, or when a task fails in a way that a restart of the task cannot
// repair.
func (s *supervisor) run(ctx context.Context, tasks []task) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, t := range tasks {
		g.Go(func() error { return s.keep(ctx, t) })
	}
	return g.Wait()
}

func (s *supervisor) keep(ctx context.Context, t task) error {
	for pause := s.first; ; pause = min(2*pause, s.longest) {
		begun := time.Now()
		works := time.AfterFunc(s.settled, func() { s.recovered(t.name) })
		err := t.run(ctx)
		works.Stop()
		switch {
		case err == nil || ctx.Err() != nil:
			s.recovered(t.name)
			return nil
		case isPermanent(err):
			s.log.Error("task failed permanently", "task", t.name, "error", err)
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if time.Since(begun) >= s.settled {
			pause = s.first
		}
		s.failed(t.name, err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// isPermanent reports whether a handle that the task needs is closed: only a new process
// opens it again.
func isPermanent(err error) bool {
	return errors.Is(err, unix.EBADF) || errors.Is(err, os.ErrClosed)
}

// failed logs the first of several failures in a row.
func (s *supervisor) failed(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, again := s.failing[name]
	if !again {
		f.since = time.Now()
		s.log.Error("task failed, trying again", "task", name, "error", err)
	}
	f.err = err
	f.tries++
	s.failing[name] = f
}

func (s *supervisor) recovered(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.failing[name]; ok {
		s.log.Info("task works again", "task", name, "failures", f.tries)
		delete(s.failing, name)
	}
}

// problems describes the tasks that do not work now.
func (s *supervisor) problems() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.failing {
		list = append(list, fmt.Sprintf("task %s has failed since %s (%d times, trying again): %v",
			name, f.since.Format(time.TimeOnly), f.tries, f.err))
	}
	slices.SortFunc(list, cmp.Compare[string])
	return list
}
