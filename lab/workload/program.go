package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

const (
	// programPort is the port of the server of the first host pair. Those of the others
	// have the following ports.
	programPort = 5300
	// programOvertime is how long a program may take beyond its duration: to connect, to
	// have its last bytes acknowledged, and to write its report.
	programOvertime = 20 * time.Second
)

// program is a program other than the load agent that runs on a host.
type program struct {
	hostPair  *hostPair
	host      *topology.Host
	cmd       *exec.Cmd
	out, errs bytes.Buffer
	ended     chan struct{}
	err       error
}

// start starts a program on a host, in the host's cgroup. The caller must call stop.
func (l *hostPair) start(h *topology.Host, name string, args ...string) (*program, error) {
	return l.startWith(nil, h, name, args...)
}

// startWith is start with another place for what the program writes to stderr.
func (l *hostPair) startWith(stderr io.Writer, h *topology.Host, name string, args ...string) (*program, error) {
	p := &program{hostPair: l, host: h, cmd: exec.Command(name, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "LC_ALL=C")
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errs
	if stderr != nil {
		p.cmd.Stderr = stderr
	}
	if place := l.place(h.Name); place != nil {
		place.Put(p.cmd)
	}
	if err := h.Start(p.cmd); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// wait waits until the program ends, at most for d.
func (p *program) wait(ctx context.Context, d time.Duration) error {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-p.ended:
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return fmt.Errorf("run %s: no end after %s", p.cmd.Args[0], d)
	}
	if p.err != nil {
		return fmt.Errorf("run %s: %w: %s", p.cmd.Args[0], p.err, strings.TrimSpace(p.errs.String()))
	}
	return nil
}

// end sends SIGTERM and waits up to d, so that the program can wait for its own processes,
// whose CPU time is then counted. Then it calls stop.
func (p *program) end(d time.Duration) {
	p.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(d):
	}
	p.stop()
}

// stop kills the program and its process group, if it runs, and counts the CPU time that it
// spent.
func (p *program) stop() {
	select {
	case <-p.ended: // its process id may have been reused
	default:
		unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
		<-p.ended
	}
	s := p.cmd.ProcessState
	p.hostPair.addCPU(p.host.Name, load.CPU{User: s.UserTime(), System: s.SystemTime()})
}

// serving waits until the program listens on a port.
func (p *program) serving(ctx context.Context, port int) error {
	for range 500 {
		for _, table := range []string{"tcp", "tcp6"} {
			sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.cmd.Process.Pid, table))
			if err == nil && listens(string(sockets), port) {
				return nil
			}
		}
		select {
		case <-p.ended:
			return fmt.Errorf("start %s: %w: %s%s", p.cmd.Args[0], errors.Join(p.err), p.errs.String(), p.out.String())
		default:
		}
		if !load.Pause(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("start %s: it does not listen on port %d after 5 s", p.cmd.Args[0], port)
}

// listens looks for a listener in a table of sockets (proc_pid_net(5)): its state is 0A
// (TCP_LISTEN), its local address ends with the port.
func listens(table string, port int) bool {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}
