// Package cc is the catalogue of congestion controls in BPF (struct_ops), tcpilot's own
// and users'. It lists them, and finds out whether this kernel accepts them, and if
// not, why. It registers them, upgrades them in place, and unloads them, without any
// effect on connections. What is known of a control by its name is in package
// congestion. A user's control is tried on an emulated link before it may be used for
// traffic.
//
// It refuses to choose: policies decide which connection gets which control.
package cc
