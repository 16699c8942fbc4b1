// Package podnet makes, finds, verifies and removes what the kernel has of a pod's network: a pair of
// devices, addresses, routes, and the rule that masquerades. It works without the daemon.
// The host's network namespace is that of the calling thread.
//
// It refuses to touch what it has not made: a device is found by the name that belongs to one
// attachment, and verified by its peer.
package podnet
