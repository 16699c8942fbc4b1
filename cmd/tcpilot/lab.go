package main

import (
	"context"
	"fmt"
	"os"
	"time"

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

// fetchLimit is how long a kernel may take to be fetched: 130 MB at 0.6 Mbit/s.
const fetchLimit = 30 * time.Minute

// runVM runs this program under another kernel.
func runVM(ctx context.Context, o cli.VMOptions) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	m := vm.Machine{Scripts: scripts.Scripts, Kernel: o.Kernel, Limit: o.Limit, Fetch: fetchLimit}
	if o.Dir != "" {
		m.Writable = []string{o.Dir}
	}
	exit, err := m.Run(ctx, append([]string{self}, o.Args...), o.Stdout, o.Stderr)
	if err != nil {
		return err
	}
	if exit != 0 {
		return fmt.Errorf("under kernel %s it ended with exit status %d", o.Kernel, exit)
	}
	return nil
}
