// Package testenv gives tests the kernel objects that they need: network
// namespaces, veth pairs, cgroups and sysctls, each undone when the test ends.
//
// It imports the standard library, netlink and netns, and nothing of this
// module, so that any package's tests may use it. It refuses to be imported by
// anything but tests and the lab.
package testenv
