package podrecord

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/filelock"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// TestHold: what a process started while it held a record keeps the lock after the process was killed.
func TestHold(t *testing.T) {
	k := pod.Key{Container: "c1", Interface: "eth0"}
	if dir := os.Getenv("TCPILOT_HOLD"); dir != "" {
		if _, err := Dir(dir).Hold(k, 0); err != nil {
			t.Fatal(err)
		}
		if err := exec.Command("sleep", "1").Start(); err != nil {
			t.Fatal(err)
		}
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	d := Dir(t.TempDir())
	if _, err := d.Hold(k, 0); err != nil {
		t.Errorf("without a record: %v", err)
	}
	p := example()
	p.Container, p.Interface = k.Container, k.Interface
	if err := d.Put(p); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	killed := exec.Command(os.Args[0], "-test.run=^TestHold$")
	killed.Env = append(os.Environ(), "TCPILOT_HOLD="+string(d))
	if err := killed.Run(); killed.ProcessState == nil || killed.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Fatalf("the process that holds the record: %v", err)
	}
	var held *filelock.HeldError
	if _, err := d.Hold(k, 0); time.Since(begun) < time.Second && !errors.As(err, &held) {
		t.Errorf("the lock of a process that runs: %v", err)
	}
	release, err := d.Hold(k, 10*time.Second)
	if err != nil || time.Since(begun) < time.Second {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
	release()
	if release, err = d.Hold(k, 0); err != nil {
		t.Errorf("once it is released: %v", err)
	}
	release()
}
