// Package workload is the traffic of a lab scenario: who sends what to whom, made
// by load agents in a built topology, or by outside programs (iperf3, nginx and
// wrk) as witnesses, and what came of it as measure.Result.
//
// It refuses unbounded traffic: every piece has a duration or a count, and a limit to
// both.
package workload
