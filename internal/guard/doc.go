// Package guard notices arms that do harm on one path. A learner finds out which arm
// serves its own connections best; guards look at what it leaves open: an arm that is
// tried again and again though it brings next to nothing, one that wins by filling the
// path with packets sent twice, and one that waits for marks which nobody makes. All but
// the last compare with the path's hold-out, so that a bad path is not held against the
// arms that are used on it.
//
// It refuses to read a clock and to act: times are those of samples, and package engine
// takes the arm from the path.
package guard
