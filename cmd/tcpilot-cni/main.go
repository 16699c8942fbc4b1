// Command tcpilot-cni is a CNI plugin, which container runtimes run. It records pods for
// tcpilot. With the key ipam it also makes their network; without, it is chained behind a
// plugin that does.
package main

import (
	"fmt"
	"os"

	"github.com/tcpilot/tcpilot/internal/cni"
)

// release is set by the linker (-X main.release=1.2.3).
var release = "devel"

func main() {
	if os.Getenv("CNI_COMMAND") == "" {
		fmt.Fprintf(os.Stderr, "tcpilot-cni %s is a CNI plugin: container runtimes run it as their network configuration says.\n", release)
	}
	os.Exit(cni.Process{Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}.Run())
}
