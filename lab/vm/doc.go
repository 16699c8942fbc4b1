// Package vm runs a command under another kernel: it hands it to the scripts of
// test/vm, which boot one in an emulated machine on this machine's file system.
//
// The scripts come from its caller. It refuses to install or configure anything on this
// machine; a kernel that is not there yet is fetched into the user's cache.
package vm
