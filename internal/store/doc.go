// Package store keeps what was learned across restarts, in one file that is replaced
// atomically. A file that it cannot trust is moved aside, never repaired.
//
// It refuses to look into a belief: to the store it is opaque bytes.
package store
