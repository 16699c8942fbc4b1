// Package report writes and reads the results of lab experiments: JSON lines with a
// versioned schema, a table for the terminal, a self-contained page with plots, and the
// comparison of two reports.
//
// It refuses to decide whether a round is valid: that is decided before a record is
// written.
package report
