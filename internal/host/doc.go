// Package host reads the state of the machine that tcpilot runs on: its cgroups, network
// namespaces, sysctls, congestion controls and bpffs. It can undo exactly what it changes
// there.
//
// It refuses to handle connections or BPF: package datapath does that.
package host
