// Package store keeps what was learned across restarts, in one embedded
// database file. A file that it cannot trust is moved aside, never repaired.
//
// It refuses to look into a belief: to the store it is bytes of the engine's making.
package store
