// Package link makes each direction of a lab network's wire do to packets what a
// Spec says: delay, loss, rate and queue, marks, a policer.
//
// A program of our own at the receiving device (the model, bpf/model.bpf.c)
// decides what is decided at once: loss, alone and in bursts, and the policer.
// What makes packets wait is one of two backends. Netem is the kernel's netem and
// tbf where they leave. Emulator is for kernels that have no netem: the model also
// decides when each packet leaves, and an NFQUEUE keeps it in the kernel until
// then.
//
// It runs tc and iptables-legacy. It refuses to impair a device of the host: it works
// on the ends of lab wires only, and in one named direction.
package link
