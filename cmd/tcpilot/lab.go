package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/tcpilot/tcpilot/internal/console"
)

func findLab() (string, error) { return console.FindProgram("tcpilot-lab", "install-lab") }

// execLab replaces this process by tcpilot-lab, so that tcpilot-lab gets the terminal and
// all signals.
func execLab(args []string) error {
	lab, err := findLab()
	if err != nil {
		return err
	}
	err = syscall.Exec(lab, append([]string{lab}, args...), os.Environ())
	return fmt.Errorf("run %s: %w", lab, err)
}

func labOutput(ctx context.Context, args []string) ([]byte, error) {
	lab, err := findLab()
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, lab, args...).Output()
}
