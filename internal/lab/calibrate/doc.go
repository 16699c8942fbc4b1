// Package calibrate finds out what a lab link really does, and whether the
// machine left an experiment undisturbed: round trip, loss and rate measured
// against what was asked; processors busy, stolen or stalled.
//
// It imports lab/link, lab/load and lab/topology. It refuses to correct a figure:
// what is not sane is said, and does not count.
package calibrate
