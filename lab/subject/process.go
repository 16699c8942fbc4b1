package subject

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/lab/topology"
	"golang.org/x/sys/unix"
)

const (
	// patience is how long a process may take to end after SIGTERM: on an emulated
	// processor much more than the second of a real one.
	patience = time.Minute
	// drain is how long output may still come after a process has ended: its background
	// processes may keep the pipe open.
	drain = time.Second
)

// process is a program on a host, watched until it ends.
type process struct {
	name string // for errors
	log  *tail
	// patience is how long it may take to end.
	patience time.Duration
	// loose leaves the rest of the process group alone when the program ends.
	loose bool

	cmd    *exec.Cmd
	exited chan struct{}
	err    error // how it ended; set when exited is closed

	mu     sync.Mutex
	reaped bool // its id may be another's
}

// start starts cmd on a host, in a cgroup if that is not nil. Its output goes to the log
// unless cmd.Stdout is set.
func (p *process) start(h *topology.Host, cg *topology.Cgroup, cmd *exec.Cmd) error {
	p.cmd, p.exited = cmd, make(chan struct{})
	if cmd.Stdout == nil {
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.log, p.log, drain
	}
	cg.Put(cmd)
	if err := h.Start(cmd); err != nil {
		return err
	}
	go p.watch()
	return nil
}

// watch waits for the end of the process, and then ends the rest of its group. The process
// id is not reused before the process is waited for, so the group is still its own.
func (p *process) watch() {
	pid := p.cmd.Process.Pid
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	p.mu.Lock()
	if !p.loose {
		unix.Kill(-pid, unix.SIGKILL)
	}
	p.reaped = true
	p.mu.Unlock()
	p.err = p.cmd.Wait()
	close(p.exited)
}

// signal signals the whole process group.
func (p *process) signal(s unix.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		unix.Kill(-p.cmd.Process.Pid, s)
	}
}

// lost returns an error if the process has ended.
func (p *process) lost() error {
	select {
	case <-p.exited:
	default:
		return nil
	}
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended by itself: %s\n%s", p.name, how, p.log.end())
}

// end ends the process. It returns an error if it had ended before, or had to be killed.
func (p *process) end() error {
	if err := p.lost(); err != nil {
		return err
	}
	p.signal(unix.SIGTERM)
	select {
	case <-p.exited:
		return nil
	case <-time.After(p.patience):
	}
	p.signal(unix.SIGKILL)
	<-p.exited
	return fmt.Errorf("%s did not end within %s of SIGTERM and was killed\n%s", p.name, p.patience, p.log.end())
}

// endAll ends processes at the same time.
func endAll(all []*process) error {
	errs := make([]error, len(all))
	var done sync.WaitGroup
	for i, p := range all {
		done.Go(func() { errs[i] = p.end() })
	}
	done.Wait()
	return errors.Join(errs...)
}

// ready waits until ask reports that the process works.
func (p *process) ready(ctx context.Context, ask func() error) error {
	deadline := time.After(readyLimit)
	for {
		err := ask()
		if lost := p.lost(); lost != nil {
			return lost
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("%s is not ready after %s: %w\n%s", p.name, readyLimit, err, p.log.end())
		case <-p.exited:
		case <-time.After(readyPoll):
		}
	}
}
