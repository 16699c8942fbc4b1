// Package calibrate measures what a lab link actually does, and whether the machine
// disturbed an experiment: it compares delay, jitter, loss, reordering, rate, queue and
// marks with what was asked, and checks whether the processors were busy, whether other
// virtual machines took their time (steal), and whether the machine stalled.
//
// Link measures with its own probes, on UDP sockets in the namespaces of both hosts.
// Because both are in one process, the delay of each direction is known, not only the
// sum. Watch measures the host.
//
// It refuses to correct a figure: a figure that is not plausible is reported and excluded.
package calibrate
