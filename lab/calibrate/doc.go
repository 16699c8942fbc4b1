// Package calibrate measures what a lab link actually does, and whether the machine
// disturbed an experiment: it compares delay, jitter, loss, reordering, rate, queue and
// marks with what was asked, and checks whether processors were busy, stolen or stalled.
//
// Link measures with its own probes, on UDP sockets in the namespaces of both hosts.
// Because both are in one process, the delay of each direction is known, not only the
// sum. Watch measures the host.
//
// It refuses to correct a figure: one that is not plausible is reported and excluded.
package calibrate
