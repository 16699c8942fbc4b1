package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// agentEnv is set in the environment of an agent's process.
const agentEnv = "TCPILOT_LOAD_AGENT"

// RunIfAgent does not return if this process was started by StartAgent: it serves requests
// until its standard input ends, and exits.
func RunIfAgent() {
	if os.Getenv(agentEnv) != "1" {
		return
	}
	if err := serveRequests(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "load agent:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// worker serves requests in the agent's process.
type worker struct {
	writing sync.Mutex // of answers; separate from mu, so that requests are read while the pipe is full
	answers *json.Encoder
	mu      sync.Mutex
	running map[uint64]context.CancelFunc // requests, by id
	servers []*server
}

// serveRequests serves requests, each in its own goroutine, until in ends.
func serveRequests(in io.Reader, out io.Writer) error {
	requests := json.NewDecoder(in)
	w := &worker{answers: json.NewEncoder(out), running: map[uint64]context.CancelFunc{}}
	for {
		var r request
		err := requests.Decode(&r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		if r.Op == "cancel" {
			w.cancel(r.ID)
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		w.mu.Lock()
		w.running[r.ID] = cancel
		w.mu.Unlock()
		go w.answer(ctx, r)
	}
}

func (w *worker) cancel(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cancel := w.running[id]; cancel != nil {
		cancel()
	}
}

// answer performs a request and writes its result.
func (w *worker) answer(ctx context.Context, r request) {
	a := response{ID: r.ID}
	result, err := w.perform(ctx, r)
	if raw, merr := json.Marshal(result); merr == nil {
		a.Result = raw
	} else {
		err = errors.Join(err, merr)
	}
	if err != nil {
		a.Error = err.Error()
	}
	w.cancel(r.ID)
	w.mu.Lock()
	delete(w.running, r.ID)
	w.mu.Unlock()
	w.writing.Lock()
	defer w.writing.Unlock()
	w.answers.Encode(a) // an error means that the parent process is gone; then in ends too
}

func (w *worker) perform(ctx context.Context, r request) (any, error) {
	switch r.Op {
	case "listen":
		return with(ctx, r.Spec, w.listen)
	case "bulk":
		return with(ctx, r.Spec, bulk)
	case "rpc":
		return with(ctx, r.Spec, rpc)
	case "flows":
		return with(ctx, r.Spec, flows)
	case "mux":
		return with(ctx, r.Spec, multiplex)
	case "churn":
		return with(ctx, r.Spec, churn)
	case "collect":
		return with(ctx, r.Spec, w.collect)
	case "cpu":
		return ownCPU(), nil
	}
	return nil, fmt.Errorf("unknown request %q", r.Op)
}

func with[S, R any](ctx context.Context, raw json.RawMessage, f func(context.Context, S) (R, error)) (any, error) {
	var s S
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	return f(ctx, s)
}

func (w *worker) listen(ctx context.Context, s ListenSpec) (listening, error) {
	lc := net.ListenConfig{Control: setCongestion(s.CC), KeepAlive: -1}
	network := s.Network
	if network == "" {
		network = "tcp"
	}
	l, err := lc.Listen(ctx, network, s.Address)
	if err != nil {
		return listening{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers = append(w.servers, serve(l)) // until the process ends, or until collect
	return listening{Address: l.Addr().(*net.TCPAddr).AddrPort()}, nil
}

// collect ends all servers and returns their accounts.
func (w *worker) collect(_ context.Context, grace time.Duration) (map[uint64]Account, error) {
	w.mu.Lock()
	servers := w.servers
	w.servers = nil
	w.mu.Unlock()
	accounts := map[uint64]Account{}
	deadline := time.Now().Add(grace)
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.collect(deadline, accounts))
	}
	return accounts, errors.Join(errs...)
}
