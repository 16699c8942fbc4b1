// Package cc is the catalogue of congestion controls in BPF (struct_ops): which
// there are, those of ours and users' own; whether this kernel takes them, and if
// not why; registering them with the kernel, upgrading them in place, and taking
// them away, none of which a connection notices. What is known of a control by its name
// is in package congestion. A user's own is tried out on a line of the test's own before
// it may touch traffic.
//
// It refuses to choose: which connection gets which control is the policies' affair.
package cc
