package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
)

// Starter starts a process where its sockets shall be: a host of a topology.
type Starter interface {
	Start(cmd *exec.Cmd) error
}

// Placer puts a process that is about to start into a cgroup.
type Placer interface {
	Put(cmd *exec.Cmd)
}

// Agent is a process that makes load. Its methods may be called at the same
// time: orders to one agent run beside each other.
type Agent struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu      sync.Mutex
	out     *json.Encoder
	seq     uint64
	pending map[uint64]chan response
	ended   error // set once the process is gone
	gone    chan struct{}
}

// request and response are the lines between an agent and its master.
type request struct {
	ID   uint64
	Op   string
	Spec json.RawMessage
}

type response struct {
	ID     uint64
	Result json.RawMessage
	Error  string
}

// StartAgent starts this program again as an agent; see RunIfAgent. place may
// be nil: then the agent stays in the cgroup of its master.
func StartAgent(host Starter, place Placer) (*Agent, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	a := &Agent{
		cmd:     exec.Command(self),
		pending: map[uint64]chan response{},
		gone:    make(chan struct{}),
	}
	a.cmd.Env = append(os.Environ(), agentEnv+"=1")
	a.cmd.Stderr = os.Stderr
	if place != nil {
		place.Put(a.cmd)
	}
	if a.stdin, err = a.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	stdout, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	if err := host.Start(a.cmd); err != nil {
		return nil, err
	}
	a.out = json.NewEncoder(a.stdin)
	go a.receive(stdout)
	return a, nil
}

// receive hands answers to those who wait for them, until the process ends.
func (a *Agent) receive(stdout io.Reader) {
	in := json.NewDecoder(stdout)
	var err error
	for {
		var r response
		if err = in.Decode(&r); err != nil {
			break
		}
		a.mu.Lock()
		waiting := a.pending[r.ID]
		delete(a.pending, r.ID)
		a.mu.Unlock()
		if waiting != nil {
			waiting <- r
		}
	}
	if werr := a.cmd.Wait(); werr != nil {
		err = werr
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = fmt.Errorf("agent ended: %w", err)
	close(a.gone)
}

// call gives an order and waits for its end.
func (a *Agent) call(ctx context.Context, op string, spec, result any) error {
	raw, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	answer := make(chan response, 1)
	a.mu.Lock()
	a.seq++
	id := a.seq
	a.pending[id] = answer
	err = a.out.Encode(request{ID: id, Op: op, Spec: raw})
	a.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	select {
	case r := <-answer:
		if r.Error != "" {
			return fmt.Errorf("%s: %s", op, r.Error)
		}
		return json.Unmarshal(r.Result, result)
	case <-a.gone:
		return fmt.Errorf("%s: %w", op, a.ended)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", op, ctx.Err())
	}
}

// Listen starts a server, which lives as long as the agent.
func (a *Agent) Listen(ctx context.Context, s ListenSpec) (at netip.AddrPort, err error) {
	var l Listening
	err = a.call(ctx, "listen", s, &l)
	return l.Address, err
}

// Bulk makes one bulk connection.
func (a *Agent) Bulk(ctx context.Context, s BulkSpec) (r BulkResult, err error) {
	err = a.call(ctx, "bulk", s, &r)
	return r, err
}

// Churn makes many short connections.
func (a *Agent) Churn(ctx context.Context, s ChurnSpec) (r ChurnResult, err error) {
	err = a.call(ctx, "churn", s, &r)
	return r, err
}

// CPU is what the agent's process has spent since it started.
func (a *Agent) CPU(ctx context.Context) (c CPU, err error) {
	err = a.call(ctx, "cpu", nil, &c)
	return c, err
}

// Pid is the agent's process.
func (a *Agent) Pid() int { return a.cmd.Process.Pid }

// Close ends the agent and its connections.
func (a *Agent) Close() error {
	a.stdin.Close()
	<-a.gone
	if errors.Is(a.ended, io.EOF) {
		return nil
	}
	return a.ended
}

// agentEnv tells a program that it was started as an agent.
const agentEnv = "TCPILOT_LOAD_AGENT"

// RunIfAgent does not return if this process was started by StartAgent: it obeys
// its master and exits.
func RunIfAgent() {
	if os.Getenv(agentEnv) != "1" {
		return
	}
	if err := obey(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "load agent:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// obey runs orders, each on its own goroutine, until in ends.
func obey(in io.Reader, out io.Writer) error {
	requests, answers := json.NewDecoder(in), json.NewEncoder(out)
	var mu sync.Mutex
	for {
		var r request
		err := requests.Decode(&r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read order: %w", err)
		}
		go func() {
			a := response{ID: r.ID}
			result, err := perform(r)
			if err == nil {
				a.Result, err = json.Marshal(result)
			}
			if err != nil {
				a.Error = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			answers.Encode(a) // a master that is gone has closed in as well
		}()
	}
}

func perform(r request) (any, error) {
	switch r.Op {
	case "listen":
		return with(r.Spec, listen)
	case "bulk":
		return with(r.Spec, bulk)
	case "churn":
		return with(r.Spec, churn)
	case "cpu":
		return ownCPU(), nil
	}
	return nil, fmt.Errorf("%s: no such order", r.Op)
}

func with[S, R any](raw json.RawMessage, f func(S) (R, error)) (any, error) {
	var s S
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	return f(s)
}

func listen(s ListenSpec) (Listening, error) {
	lc := net.ListenConfig{Control: setCongestion(s.CC), KeepAlive: -1}
	l, err := lc.Listen(context.Background(), "tcp", s.Address)
	if err != nil {
		return Listening{}, err
	}
	serve(l) // until the process ends
	return Listening{Address: l.Addr().(*net.TCPAddr).AddrPort()}, nil
}
