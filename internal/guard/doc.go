// Package guard detects arms that do harm on one path. The learner finds the arm that is
// best for its own connections. Guards cover other cases: an arm that is tried repeatedly
// with next to no reward, an arm that wins by filling the path with retransmits, and an arm
// that waits for marks on a path that does not mark. All but the last compare with the
// path's hold-out, so that an arm is not blamed for a bad path.
//
// Whether a whole path is left to the default is decided in package engine, by comparing its
// connections with the hold-out (compare.go).
//
// It refuses to read a clock and to act: times are those of samples, and package engine
// retires the arm on the path.
package guard
