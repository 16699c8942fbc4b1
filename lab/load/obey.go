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

// worker is the agent's own side.
type worker struct {
	writing sync.Mutex // of answers; apart from mu, so that orders are read while the pipe is full
	answers *json.Encoder
	mu      sync.Mutex
	running map[uint64]context.CancelFunc // orders, by their number
	servers []*server
}

// obey runs orders, each on its own goroutine, until in ends.
func obey(in io.Reader, out io.Writer) error {
	requests := json.NewDecoder(in)
	w := &worker{answers: json.NewEncoder(out), running: map[uint64]context.CancelFunc{}}
	for {
		var r request
		err := requests.Decode(&r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read order: %w", err)
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

// answer performs an order and says what came of it.
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
	w.answers.Encode(a) // a master that is gone has closed in as well
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
	case "harvest":
		return with(ctx, r.Spec, w.harvest)
	case "cpu":
		return ownCPU(), nil
	}
	return nil, fmt.Errorf("%s: no such order", r.Op)
}

func with[S, R any](ctx context.Context, raw json.RawMessage, f func(context.Context, S) (R, error)) (any, error) {
	var s S
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	return f(ctx, s)
}

func (w *worker) listen(ctx context.Context, s ListenSpec) (Listening, error) {
	lc := net.ListenConfig{Control: setCongestion(s.CC), KeepAlive: -1}
	network := s.Network
	if network == "" {
		network = "tcp"
	}
	l, err := lc.Listen(ctx, network, s.Address)
	if err != nil {
		return Listening{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers = append(w.servers, serve(l)) // until the process ends, or harvest
	return Listening{Address: l.Addr().(*net.TCPAddr).AddrPort()}, nil
}

// harvest ends all servers and gathers what they kept.
func (w *worker) harvest(_ context.Context, grace time.Duration) (map[uint64]Account, error) {
	w.mu.Lock()
	servers := w.servers
	w.servers = nil
	w.mu.Unlock()
	accounts := map[uint64]Account{}
	deadline := time.Now().Add(grace)
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.harvest(deadline, accounts))
	}
	return accounts, errors.Join(errs...)
}
