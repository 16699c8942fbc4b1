// Package filelock locks files and directories against other processes (flock(2)); the
// kernel releases a lock when its holder dies. It refuses to break a lock that is held.
package filelock
