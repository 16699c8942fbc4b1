package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
	"golang.org/x/sys/unix"
)

// scratch holds the binary; removed at the end.
var scratch string

func TestMain(m *testing.M) {
	load.RunIfAgent()
	runIfLive()
	if err := preferOverOthers(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(run(m))
}

// preferOverOthers starts this process again with a priority above that of other work on the machine,
// because these tests check times that a scheduler's delay would change. What it starts has it too.
func preferOverOthers() error {
	const nice = -10
	// The system call returns 20 - nice (getpriority(2)).
	if now, err := unix.Getpriority(unix.PRIO_PROCESS, 0); os.Geteuid() != 0 || err != nil || 20-now <= nice {
		return err
	}
	runtime.LockOSThread() // the priority is the thread's, and the new process has that of this thread
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, nice); err != nil {
		return fmt.Errorf("raise the priority of the tests: %w", err)
	}
	return fmt.Errorf("start the tests again: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}

func run(m *testing.M) int {
	if os.Geteuid() == 0 {
		if _, err := topology.Sweep(); err != nil {
			fmt.Fprintln(os.Stderr, "clean up after killed runs:", err)
		}
	}
	var err error
	if scratch, err = os.MkdirTemp("", "tcpilot-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	// TestRootOnlyTheSocketsOwnersAreServed runs the binary as nobody.
	if err := os.Chmod(scratch, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build builds tcpilot once and returns the binary.
var build = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("TCPILOT_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	bin := filepath.Join(scratch, "tcpilot")
	out, err := exec.Command("go", "build", "-o", filepath.Dir(bin), "github.com/tcpilot/tcpilot/cmd/...").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build tcpilot: %w\n%s", err, out)
	}
	return bin, nil
})
