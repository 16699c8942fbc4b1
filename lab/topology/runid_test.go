package topology

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestRunIDNameRoundTrip(t *testing.T) {
	id, err := newRunID()
	if err != nil {
		t.Fatal(err)
	}
	got, ok := parseName(id.name("far-away"))
	if !ok || got != id {
		t.Errorf("parseName(%q) = %v, %v, want %v", id.name("far-away"), got, ok, id)
	}
	if !id.alive() {
		t.Error("this process's own run counts as dead")
	}
	if next, _ := newRunID(); next == id {
		t.Error("two runs of one process share an id")
	}
}

func TestParseNameRefusesForeignNames(t *testing.T) {
	for _, name := range []string{
		"", "tcpilot", "tcpilot-", "tcpilot-test-12-3", "tcpilot-1.2.3", "tcpilot-1.2-host",
		"tcpilot-1.2.3x-host", "tcpilot-01.2.3-host", "blue", "cni-1.2.3-host",
	} {
		if id, ok := parseName(name); ok {
			t.Errorf("parseName(%q) = %v, want no run", name, id)
		}
	}
}

// A run is dead if its process was killed, even if the parent has not waited for it.
func TestRunOfZombieIsDead(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	id := runID{pid: cmd.Process.Pid, start: start, seq: 1}
	if !id.alive() {
		t.Error("the run of a running process counts as dead")
	}
	cmd.Process.Kill()
	defer cmd.Wait()
	for range 100 {
		if !id.alive() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("two seconds after its process ended the run counts as alive")
}

func TestRunOfRecycledPidIsDead(t *testing.T) {
	start, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if (runID{pid: os.Getpid(), start: start - 1, seq: 1}).alive() {
		t.Error("a run of an earlier process with this pid counts as alive")
	}
}
