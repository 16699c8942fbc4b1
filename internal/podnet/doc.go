// Package podnet makes, finds, checks and removes the kernel objects of a pod's network: a pair of
// devices, addresses, routes, and nftables rules that masquerade the pod. It works without the daemon.
// The host's network namespace is that of the calling thread.
//
// It refuses to remove what it has not made: a device is found by a name that belongs to one
// attachment alone, and a veth device by its MAC address as well.
package podnet
