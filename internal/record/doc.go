// Package record keeps samples in a file, to be replayed later by the same
// engine, without root and without the hosts that they came from.
//
// A file is a header (magic, version, record size, a JSON Meta) and then
// records of fixed size, little-endian, each with a checksum. There is no
// index and no trailer: a file that was cut short is readable up to the cut.
//
// It refuses to guess: a file of another version, a damaged record or an incomplete last one is
// an error with its position.
package record
