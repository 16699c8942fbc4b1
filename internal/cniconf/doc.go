// Package cniconf puts tcpilot-cni into the network configuration of a container runtime, behind the
// plugins that are there, and takes it out again.
//
// It refuses to write a configuration of its own: what else is in a file stays, byte for byte.
package cniconf
