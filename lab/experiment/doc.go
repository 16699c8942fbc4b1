// Package experiment runs a scenario: it builds the network, calibrates the links, makes
// rounds with the subjects in turn, watches the host, and writes records.
//
// It refuses to write a figure that was taken while the checks of link or host failed.
package experiment
