// Package buffers decides how large the buffers of TCP connections may become in each network
// namespace: the maxima of net.ipv4.tcp_rmem and net.ipv4.tcp_wmem. They are raised while
// connections are bound by them on paths that hold more, and go back if TCP runs short of
// memory.
//
// It refuses to read or write a sysctl.
package buffers
