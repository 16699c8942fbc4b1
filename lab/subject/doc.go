// Package subject is what a lab experiment compares: the kernel's defaults, a
// fixed congestion control, a route's initial window, tcpilot, bpftune, or any
// command that starts and stops a tuner.
//
// It refuses to leave anything behind: Stop undoes Start, and a Start that goes wrong
// half-way undoes itself.
package subject
