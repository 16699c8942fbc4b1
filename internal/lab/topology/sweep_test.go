package topology

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// sweepVictim makes this test binary build a star with a process in it, say so,
// and wait to be killed.
const sweepVictim = "TCPILOT_TOPOLOGY_VICTIM"

func TestRootSweepRemovesWhatAKilledRunLeft(t *testing.T) {
	testenv.Root(t)
	if os.Getenv(sweepVictim) != "" {
		beVictim(t)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.Command(self, "-test.run", "^"+t.Name()+"$")
	victim.Env = append(os.Environ(), sweepVictim+"=1")
	stdout, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		victim.Process.Kill() // again, if the test ended early
		victim.Wait()
	})
	var id string
	var pid int
	in := bufio.NewScanner(stdout)
	for in.Scan() {
		if n, _ := fmt.Sscanf(in.Text(), "ready %s %d", &id, &pid); n == 2 {
			break
		}
	}
	if id == "" {
		t.Fatal("the run to kill did not start")
	}
	live, err := Sweep()
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(live, func(s string) bool { return strings.Contains(s, id) }); i >= 0 {
		t.Errorf("sweep removed %s of a run that lives", live[i])
	}
	victim.Process.Kill()
	victim.Wait()
	removed, err := Sweep()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []string{"client", "gateway", "far", "load", "files"} {
		if want := prefix + id + "-" + object; !slices.Contains(removed, want) {
			t.Errorf("sweep removed %s, want %s among them", removed, want)
		}
	}
	if left, _ := filepath.Glob("/run/netns/" + prefix + id + "-*"); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
	waitGone(t, pid)
}

// beVictim never returns. Its process outlives it: it was not started by Start,
// which would have the kernel kill it.
func beVictim(t *testing.T) {
	n, err := New()
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewStar(n, "far")
	if err != nil {
		t.Fatal(err)
	}
	cg, err := n.Cgroup("load")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := n.Dir("files")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.BPFFS(dir); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "120")
	cg.Put(cmd)
	if err := s.Client.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("ready %s %d\n", n.ID(), cmd.Process.Pid)
	select {}
}

// waitGone waits for the process to be dead; a zombie that nobody has reaped
// yet counts.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for range 100 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("process %d of the killed run still runs", pid)
	syscall.Kill(pid, syscall.SIGKILL)
}
