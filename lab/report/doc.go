// Package report writes and reads what lab experiments found: JSON lines with a
// versioned schema, a table for the terminal, a self-contained page with plots,
// and two reports side by side.
//
// It refuses to judge: what a run may be compared with is decided before a record is
// written.
package report
