package main

import (
	"context"
	"fmt"
	"os"

	"github.com/tcpilot/tcpilot/internal/cli"
	"github.com/tcpilot/tcpilot/internal/lab/experiment"
	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"github.com/tcpilot/tcpilot/internal/lab/vm"
	scripts "github.com/tcpilot/tcpilot/test/vm"
)

func lab() cli.Lab {
	return cli.Lab{
		Run:       experiment.Run,
		Calibrate: experiment.Calibrate,
		Clean:     topology.Sweep,
		VM:        runVM,
	}
}

// runVM runs this program under another kernel.
func runVM(ctx context.Context, o cli.VMOptions) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	m := vm.Machine{Scripts: scripts.Scripts, Kernel: o.Kernel, Writable: []string{o.Dir}, Limit: o.Limit}
	exit, err := m.Run(ctx, append([]string{self}, o.Args...), o.Stdout, o.Stderr)
	if err != nil {
		return err
	}
	if exit != 0 {
		return fmt.Errorf("under kernel %s it ended with exit status %d", o.Kernel, exit)
	}
	return nil
}
