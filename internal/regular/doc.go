// Package regular reads files that somebody else names: an object to load, for
// example, whose path comes through the API.
//
// It refuses to open what is not a regular file: a FIFO waits for a writer, and a
// device may act on being opened.
package regular
