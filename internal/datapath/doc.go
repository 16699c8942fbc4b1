// Package datapath owns the programs at sock_ops, tracepoints and iterators, and their maps:
// it loads, attaches, pins and adopts them, writes rules and policies into the maps, and
// turns what the programs report into tcp.Sample.
//
// The kernel's types stay unexported. It refuses to decide: its caller passes in the rules
// and policies.
package datapath
