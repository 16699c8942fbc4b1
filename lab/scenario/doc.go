// Package scenario reads the experiments of the lab: a network, what its links do, the
// traffic, the subjects and what is expected of them, in one YAML file each. The
// shipped ones are embedded.
//
// It does not use the decoder of package config: a file is merged before it is decoded, the
// sections of a variant over those of a case over those of the file, and a mistake in what
// cases share must be reported once, at its place in the file. Both use yamlfile as the parser.
//
// It refuses to run anything: it reads, checks and explains.
package scenario
