package load

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// here starts agents where the test is.
type here struct{}

func (here) Start(cmd *exec.Cmd) error { return cmd.Start() }

func newAgent(t *testing.T) *Agent {
	t.Helper()
	a, err := StartAgent(here{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAgentsTalkToEachOther(t *testing.T) {
	ctx := t.Context()
	server, client := newAgent(t), newAgent(t)
	at, err := server.Listen(ctx, ListenSpec{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := client.Bulk(ctx, BulkSpec{To: at.String(), Duration: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Churn(ctx, ChurnSpec{To: []string{at.String()}, Duration: 5 * time.Second, Count: 20})
	if err != nil {
		t.Fatal(err)
	}
	if b.Received == 0 || c.Connections != 20 {
		t.Errorf("received %d bytes, made %d connections", b.Received, c.Connections)
	}
	if cpu, err := server.CPU(ctx); err != nil || cpu.Sum() == 0 {
		t.Errorf("server spent %v, %v", cpu, err)
	}
	for _, a := range []*Agent{client, server} {
		if err := a.Close(); err != nil {
			t.Errorf("close agent: %v", err)
		}
	}
}

func TestAgentReportsErrors(t *testing.T) {
	a := newAgent(t)
	_, err := a.Bulk(t.Context(), BulkSpec{To: "127.0.0.1:1", Duration: time.Second})
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("bulk to a closed port: %v", err)
	}
	if err := a.call(t.Context(), "dance", nil, nil); err == nil {
		t.Error("an unknown request was served")
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestAgentThatDiesEndsItsRequests(t *testing.T) {
	a := newAgent(t)
	server := newServer(t)
	failed := make(chan error)
	go func() {
		_, err := a.Bulk(context.Background(), BulkSpec{To: server, Duration: time.Minute})
		failed <- err
	}()
	time.Sleep(50 * time.Millisecond)
	if err := unix.Kill(a.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		if err == nil {
			t.Error("a request to a dead agent succeeded")
		}
	case <-time.After(5 * time.Second):
		t.Error("a request to a dead agent goes on")
	}
	if err := a.Close(); err == nil {
		t.Error("closing a killed agent says nothing")
	}
}

func TestAgentRequestEndsWithContext(t *testing.T) {
	a := newAgent(t)
	defer a.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	const long = 5 * time.Second
	begin := time.Now()
	_, err := a.Bulk(ctx, BulkSpec{To: newServer(t), Duration: long})
	if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took > long/2 {
		t.Errorf("after %s of 50 ms: %v", took, err)
	}
}

// A parent that sends a large request while the agent sends a large answer does not
// deadlock, although both pipes are full.
func TestPipesBothFull(t *testing.T) {
	toAgent, fromParent := io.Pipe()
	toParent, fromAgent := io.Pipe()
	go serveRequests(toAgent, fromAgent)
	a := &Agent{pending: map[uint64]chan response{}, gone: make(chan struct{}), out: json.NewEncoder(fromParent)}
	go a.take(toParent)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() {
			var c CPU
			if err := a.call(ctx, "cpu", strings.Repeat("x", 100_000), &c); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	fromParent.Close()
}
