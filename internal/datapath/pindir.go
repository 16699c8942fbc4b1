package datapath

import "path/filepath"

// PinDir is where all that tcpilot pins lies, below a directory of a mounted BPF file
// system.
func PinDir(bpffs string) string { return filepath.Join(bpffs, "tcpilot") }
