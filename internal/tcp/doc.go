// Package tcp describes one connection: the sample that it reports, the parameters that can
// be set on it, and their units.
//
// It refuses to know where a sample came from or how a parameter reaches the kernel: no
// system call, no eBPF, no clock.
package tcp
