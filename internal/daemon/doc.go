// Package daemon wires the core to the edge: it builds the engine, the datapath
// and everything around them from a configuration, runs them as tasks, and
// answers the API.
//
// It refuses to hold state of its own that the engine or the datapath could hold.
package daemon
