// Package vm runs a command under another kernel: it passes the command to the scripts
// of test/vm, which boot an emulated machine on this machine's file system.
//
// The scripts come from its caller. It refuses to install or configure anything on this
// machine; a kernel that is not in the user's cache is fetched into it.
package vm
