// Package link makes the wires of a lab network bad in known ways: loss by a
// small eBPF program of our own, rate by tbf, delay by netem where the kernel
// has it, and the offloads that would falsify them turned off.
//
// It imports the standard library, cilium/ebpf, netlink and lab/topology. It
// refuses to impair a device of the host: it works on the ends of lab wires
// only, and in one named direction.
package link
