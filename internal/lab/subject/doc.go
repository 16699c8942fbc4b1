// Package subject is what a lab experiment compares: the kernel's defaults, a
// fixed congestion control, a route's initial window, tcpilot, bpftune, or any
// command that starts and stops a tuner.
//
// It imports lab/topology. It refuses to leave anything behind: Stop undoes Start,
// also after a Start that went wrong half-way.
package subject
