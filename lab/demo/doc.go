// Package demo shows in a minute, on this machine, what tcpilot does for a lossy
// path: the baseline, the learning connection by connection, and the gain.
//
// It runs the real tcpilot. It refuses to touch the host: everything happens in network
// namespaces and a cgroup of its own, and is removed at the end.
package demo
