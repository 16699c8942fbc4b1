// Package datapath owns everything that lives in the kernel: it loads, attaches,
// pins and adopts the eBPF programs, writes rules and policies into their maps,
// and turns what they report into tcp.Sample.
//
// The kernel's types stay unexported. It refuses to decide: its caller passes in the rules
// and policies.
package datapath
