// Package scenario reads the experiments of the lab: a network, what its links do, the
// traffic, the subjects and what is expected of them, in one YAML file each. The
// shipped ones are embedded.
//
// A file is merged before it is read: the sections of a variant over those of a case over those of
// the file. A mistake in what cases share is reported once, at its place in the file. Part of
// tcpilot's configuration in a scenario is checked by package config.
//
// It refuses to run anything: it reads, checks and explains.
package scenario
