// Package regular reads files whose path comes from outside, for example an object to load
// whose path comes through the API.
//
// It refuses to open anything that is not a regular file: a FIFO blocks until there is a
// writer, and opening a device may have side effects.
package regular
