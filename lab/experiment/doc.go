// Package experiment runs a scenario: it builds the network, calibrates the
// links, lets the subjects take turns, watches the host, and writes records.
//
// It refuses to write a figure that was taken while the link or the host was not sane.
package experiment
