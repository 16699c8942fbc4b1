// Package load makes TCP traffic for the lab and measures it: bulk streams, requests and
// replies on long-lived connections (one at a time, or many at once), transfers with a
// connection each, and many short connections.
//
// A connection is measured at both ends: the client records when it began and when all data
// had arrived, and the sender of the data keeps an Account of its kernel's counters. A server
// keeps the accounts of its connections until Agent.Collect.
//
// The traffic is made by an agent: a process in a network namespace and a cgroup, so that
// its sockets belong there and its CPU time can be measured. An agent is another process of
// the same program: a program that starts agents must call RunIfAgent first in main. Agents
// serve requests from their standard input and exit when it ends.
//
// It refuses to run without bounds: every piece of work has a duration or a count, and both
// have limits.
package load
