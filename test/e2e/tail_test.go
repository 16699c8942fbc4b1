package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/lab/load"
)

// tail collects the samples that tcpilot reports while a test runs.
type tail struct {
	mu      sync.Mutex
	samples []api.Sample
}

// follow runs `tcpilot connections --json` until the test ends.
func (p *tcpilot) follow(t testing.TB) *tail {
	t.Helper()
	before := p.clients(t)
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
	t.Cleanup(func() { // the test's context has ended by now
		<-done
		cmd.Wait()
	})
	// The command prints nothing when it has connected.
	eventually(t, 15*time.Second, "the stream of samples", func() error {
		if len(since(before, p.clients(t))) == 0 {
			return errors.New("the daemon has no new connection")
		}
		return nil
	})
	time.Sleep(100 * time.Millisecond) // for the request, which is sent right after the connect
	return f
}

// clients lists the daemon's connections by inode. Depending on the kernel, they are in the
// table of the client's network namespace or in that of the daemon's.
func (p *tcpilot) clients(t testing.TB) (inodes []string) {
	t.Helper()
	for _, file := range []string{"/proc/thread-self/net/unix", fmt.Sprintf("/proc/%d/net/unix", p.cmd.Process.Pid)} {
		table, err := os.ReadFile(file)
		must(t, err)
		for line := range strings.Lines(string(table)) {
			// Num RefCount Protocol Flags Type St Inode Path. The path is below the socket's
			// directory: the daemon makes the socket in a subdirectory and renames it.
			if f := strings.Fields(line); len(f) == 8 && f[5] == "03" && strings.HasPrefix(f[7], filepath.Dir(p.socket)+"/") {
				inodes = append(inodes, f[6])
			}
		}
	}
	return inodes
}

// find returns the latest final sample of a connection that matches.
func (f *tail) find(fits func(api.Sample) bool) (api.Sample, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range slices.Backward(f.samples) {
		if s.Kind == "close" && fits(s) {
			return s, true
		}
	}
	return api.Sample{}, false
}

// of matches the sample of the client's end of a connection.
func of(r load.BulkResult) func(api.Sample) bool {
	return func(s api.Sample) bool { return s.Cookie == r.Cookie }
}

// from matches the sample of the server's end of a connection.
func from(r load.BulkResult) func(api.Sample) bool {
	return func(s api.Sample) bool { return s.Remote == r.Local }
}

// await waits for a sample that matches.
func (f *tail) await(t testing.TB, fits func(api.Sample) bool) (s api.Sample) {
	t.Helper()
	eventually(t, 15*time.Second, "the connection's sample", func() error {
		var ok bool
		if s, ok = f.find(fits); !ok {
			return fmt.Errorf("none among %d matches", f.len())
		}
		return nil
	})
	return s
}

func (f *tail) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.samples)
}

// holdOut reports whether a connection was in the hold-out; false if that is unknown.
func (f *tail) holdOut(r load.BulkResult) bool {
	s, ok := f.find(of(r))
	return ok && slices.Contains(s.Flags, "hold-out")
}
