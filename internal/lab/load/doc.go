// Package load makes TCP traffic for the lab and says what came of it: bulk
// streams, request and reply, and connections that come and go.
//
// The traffic is made by an agent, a process of its own in a network namespace
// and a cgroup, so that its sockets belong there and its CPU time can be told
// apart. An agent is this same program started again: whoever starts agents
// calls RunIfAgent first thing in main. Agents obey orders on their standard
// input and end with it.
//
// It imports the standard library and x/sys/unix. It refuses to run without
// bounds: every piece of work has a duration or a count, and a limit to both.
package load
