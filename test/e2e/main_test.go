package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// scratch holds the binary; removed at the end.
var scratch string

func TestMain(m *testing.M) {
	load.RunIfAgent()
	runIfContainer()
	runIfLive()
	runIfHold()
	testenv.PreferOverOthers()
	os.Exit(run(m))
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
	cmd := exec.Command("go", "build", "-o", filepath.Dir(bin), "github.com/tcpilot/tcpilot/cmd/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // static, as 'make build' makes it
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build tcpilot: %w\n%s", err, out)
	}
	return bin, nil
})
