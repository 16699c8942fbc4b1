// Package host reads the state of the machine that tcpilot runs on: its network namespaces,
// sysctls and bpffs. It can undo exactly what it changes there.
//
// It refuses to handle connections or BPF: package datapath does that.
package host
