package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Starter starts a process where its sockets should be: in a host of a topology.
type Starter interface {
	Start(cmd *exec.Cmd) error
}

// Placer puts a process that is about to start into a cgroup.
type Placer interface {
	Put(cmd *exec.Cmd)
}

// Agent is a process that makes load. Its methods may be called concurrently: requests to
// one agent run at the same time.
type Agent struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser

	writing sync.Mutex // of out
	out     *json.Encoder

	mu      sync.Mutex
	seq     uint64
	pending map[uint64]chan response
	ended   error // set once the process is gone
	gone    chan struct{}
}

// request and response are the lines between an agent and its parent process.
type request struct {
	ID   uint64 // for cancel, the ID of the request to end
	Op   string
	Spec json.RawMessage
}

type response struct {
	ID     uint64
	Result json.RawMessage // partial if there is an error
	Error  string
}

// StartAgent starts another process of this program as an agent; see RunIfAgent. If place
// is nil, the agent stays in the cgroup of its parent process.
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

// take passes answers to the calls that wait for them, until there are no more.
func (a *Agent) take(stdout io.Reader) error {
	in := json.NewDecoder(stdout)
	for {
		var r response
		if err := in.Decode(&r); err != nil {
			return err
		}
		a.mu.Lock()
		waiting := a.pending[r.ID]
		delete(a.pending, r.ID)
		a.mu.Unlock()
		if waiting != nil {
			waiting <- r
		}
	}
}

// receive reads answers until the process ends.
func (a *Agent) receive(stdout io.Reader) {
	err := a.take(stdout)
	if werr := a.cmd.Wait(); werr != nil {
		err = werr
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = fmt.Errorf("agent ended: %w", err)
	close(a.gone)
}

// call sends a request and waits for its result. If ctx ends first, it cancels the request.
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
	a.mu.Unlock()
	if err := a.send(request{ID: id, Op: op, Spec: raw}); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	select {
	case r := <-answer:
		if len(r.Result) > 0 {
			err = json.Unmarshal(r.Result, result)
		}
		if r.Error != "" {
			err = errors.New(r.Error)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return nil
	case <-a.gone:
		return fmt.Errorf("%s: %w", op, a.ended)
	case <-ctx.Done():
		a.cancel(id)
		return fmt.Errorf("%s: %w", op, ctx.Err())
	}
}

// cancel ends a request whose answer is not needed any more.
func (a *Agent) cancel(id uint64) {
	a.mu.Lock()
	delete(a.pending, id)
	a.mu.Unlock()
	a.send(request{ID: id, Op: "cancel"}) // an error means that the agent is gone, and the request with it
}

// send writes a request. The pipe may be full until the agent's answers are read. take reads
// them meanwhile, because it needs only mu.
func (a *Agent) send(r request) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	return a.out.Encode(r)
}

// Listen starts a server, which runs until Collect or until the agent ends.
func (a *Agent) Listen(ctx context.Context, s ListenSpec) (at netip.AddrPort, err error) {
	var l listening
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

// RPC makes a connection with requests and replies.
func (a *Agent) RPC(ctx context.Context, s RPCSpec) (r RPCResult, err error) {
	err = a.call(ctx, "rpc", s, &r)
	return r, err
}

// Flows makes transfers from a server.
func (a *Agent) Flows(ctx context.Context, s FlowsSpec) (r FlowsResult, err error) {
	err = a.call(ctx, "flows", s, &r)
	return r, err
}

// Mux makes a connection with bursts of requests whose replies share it.
func (a *Agent) Mux(ctx context.Context, s MuxSpec) (r RPCResult, err error) {
	err = a.call(ctx, "mux", s, &r)
	return r, err
}

// Collect ends the agent's servers and returns the accounts that they kept, by
// number. Connections have the time of grace to end by themselves.
func (a *Agent) Collect(ctx context.Context, grace time.Duration) (accounts map[uint64]Account, err error) {
	err = a.call(ctx, "collect", grace, &accounts)
	return accounts, err
}

// CPU is the processor time of the agent's process since it started.
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
