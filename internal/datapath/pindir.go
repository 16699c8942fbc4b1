package datapath

import "path/filepath"

// PinDir is the directory of all pins of tcpilot, below a directory of a mounted BPF file
// system.
func PinDir(bpffs string) string { return filepath.Join(bpffs, "tcpilot") }
