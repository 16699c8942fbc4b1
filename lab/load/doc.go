// Package load makes TCP traffic for the lab and says what came of it: bulk
// streams, requests and replies on lasting connections, one by one or many at a
// time, transfers on connections of their own, and connections that come and go.
//
// A connection is seen from both ends: the client knows when it began and when
// all was there, and whoever sends the data keeps an Account of what its kernel
// says. A server keeps those of its connections until its master harvests them.
//
// The traffic is made by an agent, a process of its own in a network namespace
// and a cgroup, so that its sockets belong there and its CPU time can be told
// apart. An agent is this same program started again: whoever starts agents
// calls RunIfAgent first thing in main. Agents obey orders on their standard
// input and end with it.
//
// It refuses to run without bounds: every piece of work has a duration or a count, and
// a limit to both.
package load
