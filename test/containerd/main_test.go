package containerd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// built is the directory with what tools/test-containerd has built; programs of the runtime are in PATH.
func built(t *testing.T) string {
	dir := os.Getenv("TCPILOT_CONTAINERD")
	if dir == "" {
		t.Skip("TCPILOT_CONTAINERD names no directory of tools/test-containerd")
	}
	return dir
}

// process is a program in a node's network namespace that tests kill and start again.
type process struct {
	host *testenv.NS
	args []string
	log  string
	cmd  *exec.Cmd
}

// start starts the program and waits until ready succeeds.
func (p *process) start(t *testing.T, ready func() error) {
	t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	defer log.Close()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.host.Do(t, func() { must(t, p.cmd.Start()) })
	if ready != nil {
		eventually(t, p.args[0]+" is ready", ready)
	}
}

// kill ends the program with SIGKILL, if it runs.
func (p *process) kill() {
	if p.cmd != nil {
		p.cmd.Process.Signal(unix.SIGKILL)
		p.cmd.Wait()
		p.cmd = nil
	}
}

// limit is how long anything may take that usually takes less than a second.
const limit = 20 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until f succeeds.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	poll(t, limit, 20*time.Millisecond, what, f)
}

// poll calls f at an interval until it succeeds.
func poll(t *testing.T, limit, interval time.Duration, what string, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(interval) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("within %v: %s: %v", limit, what, err)
}

// tail is the end of a log, for a test that failed.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(text), "\n")
	return fmt.Sprintf("end of %s:\n%s", filepath.Base(path), strings.Join(lines[max(0, len(lines)-40):], ""))
}
