// Package host reads the state of the machine that tcpilot runs on: its network namespaces and
// sysctls, and what it is ready for. It mounts a BPF file system, and can undo that.
//
// It refuses to handle connections or BPF: package datapath does that.
package host
