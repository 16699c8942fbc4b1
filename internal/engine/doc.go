// Package engine is the one loop of tcpilot: it observes samples, decides on
// what each path should give to its connections, writes what changed, and
// publishes a snapshot. It owns all learned state.
//
// It refuses to touch the world: samples come in through calls, policies leave through
// a Sink, and time is an argument, so that a recorded file replays to the same
// decisions.
package engine
