// Package calibrate finds out what a lab link really does, and whether the
// machine left an experiment undisturbed: delay, jitter, loss, reordering, rate,
// queue and marks measured against what was asked; processors busy, stolen or
// stalled.
//
// Link measures with probes of its own, UDP sockets in the namespaces of both
// hosts; since one process holds both, the delay of each direction is known, not
// only their sum. Watch looks at the host.
//
// It refuses to correct a figure: what is not sane is said, and does not count.
package calibrate
