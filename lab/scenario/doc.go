// Package scenario is what the lab can be asked to run: a network, what its links
// do, the traffic, the subjects and what is expected of them, in one YAML file
// each. The shipped ones are embedded.
//
// It refuses to run anything: it reads, checks and explains.
package scenario
