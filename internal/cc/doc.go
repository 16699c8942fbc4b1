// Package cc loads, replaces and unloads congestion controls in BPF (struct_ops), tcpilot's
// own and users', without any effect on connections. It lists them, and finds out whether
// this kernel accepts them, and if not, why. What is known of a congestion control by its
// name is in package congestion. A user's congestion control is tested over loopback and an
// emulated link before it may be used for traffic.
//
// It refuses to choose: policies decide which connection gets which control.
package cc
