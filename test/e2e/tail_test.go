package e2e

import (
	"encoding/json"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
)

// tail collects the samples that tcpilot reports while a test runs.
type tail struct {
	mu      sync.Mutex
	samples []api.Sample
}

// follow runs `tcpilot connections --json` until the test ends.
func (p *tcpilot) follow(t testing.TB) *tail {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.bin, "connections", "--json", "--socket", p.socket)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	f := &tail{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for in := json.NewDecoder(out); ; {
			var s api.Sample
			if in.Decode(&s) != nil {
				return
			}
			f.mu.Lock()
			f.samples = append(f.samples, s)
			f.mu.Unlock()
		}
	}()
	t.Cleanup(func() { // the test's context is over by now
		<-done
		cmd.Wait()
	})
	// The command says nothing when it is connected.
	time.Sleep(300 * time.Millisecond)
	return f
}

// of returns the sample of the connection that ended with this local address.
func (f *tail) of(local netip.AddrPort) (api.Sample, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range slices.Backward(f.samples) {
		if s.Kind == "close" && s.Local == local {
			return s, true
		}
	}
	return api.Sample{}, false
}

// await waits for that sample.
func (f *tail) await(t testing.TB, local netip.AddrPort) (s api.Sample) {
	t.Helper()
	for range 60 {
		var ok bool
		if s, ok = f.of(local); ok {
			return s
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("no sample of the connection from %s within 3 s", local)
	return s
}

// holdOut reports whether a connection was left alone as a control. Not knowing
// counts as no.
func (f *tail) holdOut(local netip.AddrPort) bool {
	s, ok := f.of(local)
	return ok && slices.Contains(s.Flags, "hold-out")
}
