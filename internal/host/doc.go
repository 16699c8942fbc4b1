// Package host knows the machine that tcpilot runs on: its cgroups, network
// namespaces, sysctls, congestion controls and bpffs; what it changes there it
// can undo exactly.
//
// It refuses to touch connections or BPF: package datapath does that.
package host
