package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

const labProgram = "tcpilot-lab"

// findLab finds the lab's program: beside this one, or in PATH.
func findLab() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own program: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), labProgram)
	if found, err := exec.LookPath(beside); err == nil {
		return found, nil
	}
	found, err := exec.LookPath(labProgram)
	if err != nil {
		return "", fmt.Errorf("find %s: it is neither %s nor in PATH: install it with 'make install-lab' from tcpilot's sources", labProgram, beside)
	}
	return found, nil
}

// becomeLab runs the lab in place of this process, so that it has the terminal and all
// signals.
func becomeLab(args []string) error {
	lab, err := findLab()
	if err != nil {
		return err
	}
	err = syscall.Exec(lab, append([]string{lab}, args...), os.Environ())
	return fmt.Errorf("run %s: %w", lab, err)
}

func askLab(ctx context.Context, args []string) ([]byte, error) {
	lab, err := findLab()
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, lab, args...).Output()
}
