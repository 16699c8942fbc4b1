// Package metrics exports the engine's snapshot and the datapath's counters to
// Prometheus.
//
// It refuses to let a label grow with traffic: rules, congestion controls and the paths
// with most samples are named, every other path is "other", and nothing is ever
// labelled by connection.
package metrics

//go:generate go test -run ^TestDocumentation$ -update .
