// Command tcpilot-lab measures tcpilot and the subjects that it is compared with, on networks
// in namespaces of this machine.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/cli"
	"github.com/tcpilot/tcpilot/lab/demo"
	"github.com/tcpilot/tcpilot/lab/experiment"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
	"github.com/tcpilot/tcpilot/lab/vm"
	scripts "github.com/tcpilot/tcpilot/test/vm"
)

// release is set by the linker (-X main.release=1.2.3).
var release string

func main() {
	load.RunIfAgent() // clients and servers of the experiments are processes of this program
	console.Process(func(ctx context.Context, args []string) int { return cli.Main(ctx, environment(), args) })
}

func environment() cli.Env {
	return cli.Env{
		Streams:   console.Standard(),
		Version:   console.Version(release),
		Tcpilot:   findTcpilot,
		Demo:      runDemo,
		Run:       experiment.Run,
		Calibrate: experiment.Calibrate,
		Clean:     topology.Sweep,
		VM:        runVM,
	}
}

func findTcpilot() (string, error) { return console.FindProgram("tcpilot", "install") }

func runDemo(ctx context.Context, tcpilot string) error {
	s := console.Standard()
	return demo.Run(ctx, demo.Options{Binary: tcpilot, Stdout: s.Stdout, Terminal: s.Terminal})
}

// fetchLimit is the longest time to download a kernel: 130 MB at 0.6 Mbit/s.
const fetchLimit = 30 * time.Minute

// runVM runs this program under another kernel.
func runVM(ctx context.Context, o cli.VMOptions) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	m := vm.Machine{Scripts: scripts.Scripts, Kernel: o.Kernel, VirtualTime: o.VirtualTime, Limit: o.Limit, Fetch: fetchLimit}
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
