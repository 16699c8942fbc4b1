// Package scenario reads the experiments of the lab: a network, what its links do, the
// traffic, the subjects and what is expected of them, in one YAML file each. The
// shipped ones are embedded.
//
// It refuses to run anything: it reads, checks and explains.
package scenario
