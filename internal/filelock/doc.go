// Package filelock locks files and directories against other processes (flock(2)). The kernel
// releases a lock when its holder exits. The package refuses to break a lock.
package filelock
