package console

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// FindProgram finds another of tcpilot's programs: beside this one, or in PATH. target is
// the target of make that installs it.
func FindProgram(name, target string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own program: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if found, err := exec.LookPath(beside); err == nil {
		return found, nil
	}
	found, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find %s: it is neither %s nor in PATH: install it with 'make %s' from tcpilot's sources", name, beside, target)
	}
	return filepath.Abs(found)
}
