// Package engine holds all learned state: it observes samples, decides what each path gives
// to its connections, writes what changed, and publishes a snapshot.
//
// It refuses to touch the world: samples come in through calls, policies leave through
// a Sink, and time is an argument, so that a recorded file replays to the same
// decisions.
package engine
