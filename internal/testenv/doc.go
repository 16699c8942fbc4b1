// Package testenv gives tests the kernel objects that they need: network
// namespaces, veth pairs, cgroups and sysctls, each undone when the test ends; and
// keeps measurements, which fail no test, apart from tests.
//
// It imports the standard library, netlink, netns and thread, nothing else of this
// module, so that any package's tests may use it. It refuses to be imported by
// anything but tests and the lab.
package testenv
