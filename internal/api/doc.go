// Package api is how people and programs talk to a running tcpilot: HTTP and
// JSON on a unix socket, whose file permissions are the access control.
//
// It imports engine, metrics (for its counters) and tcp. It refuses to hold
// state or to decide: every answer is the Backend's, and a reader that is too
// slow loses samples rather than slowing the daemon down.
package api
