// Package api is how people and programs talk to a running tcpilot: HTTP and JSON on
// two unix sockets. File permissions say who may read; what changes something is
// only for administrators, by what the kernel says of the caller.
//
// It refuses to hold state or to decide: every answer is the Backend's, and a reader
// that is too slow loses samples rather than slowing the daemon down.
package api
