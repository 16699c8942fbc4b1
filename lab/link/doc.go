// Package link makes each direction of a lab network's wire do to packets what a
// Spec says: delay, loss, rate and queue, marks, a policer.
//
// A BPF program at the receiving device (the model, bpf/model.bpf.c) applies
// everything that needs no waiting: random loss, loss in bursts, and the policer.
// One of two backends delays packets. Netem is the kernel's netem and tbf at the
// sending device. Emulator is for kernels that have no netem: the model also decides
// when each packet leaves, and an NFQUEUE keeps it in the kernel until then.
//
// It runs tc and iptables-legacy. It refuses to impair a device of the host: it works
// on the ends of lab wires only, and in one named direction.
package link
