// Package workload is the traffic of a lab scenario: who sends what to whom. Load agents
// make it in a built topology, or other programs (iperf3, nginx, wrk and curl), with which
// the agents are compared. The result is a measure.Result.
//
// It refuses unbounded traffic: every piece has a duration or a count, and a limit to
// both.
package workload
