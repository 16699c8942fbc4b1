// Package demo shows in a minute, on this machine, what tcpilot does for a lossy
// path: the baseline, the learning connection by connection, and the gain.
//
// It runs the real tcpilot. It refuses to change the host: everything happens in network
// namespaces and a cgroup of its own, which are removed at the end.
package demo
