// Package engine holds all learned state: it observes samples, decides what each path gives
// to its connections, writes what changed, and publishes a snapshot.
//
// The state is in parts with methods and files of their own, none of which locks anything: the rules
// in force and what is known of each (rules.go), their rollouts (rollout.go), the arms that the kernel
// offers (arms.go), what the administrator owns (yield.go), the nodes that are kept (cache.go), those
// to be decided on (queue.go), the rows in the kernel (rows.go), and what is to be saved (saves.go).
// Engine has the lock, and joins them: a sample's way is in observe.go, a decision's in tick.go and
// write.go.
//
// It refuses to touch the world: samples come in through calls, policies leave through
// a Sink, and time is an argument, so that a recorded file replays to the same
// decisions.
package engine
