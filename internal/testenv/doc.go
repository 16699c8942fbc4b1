// Package testenv gives tests the kernel objects that they need: network
// namespaces, veth pairs, cgroups and sysctls, each undone when the test ends; and
// keeps measurements, which fail no test, apart from tests.
//
// It uses next to nothing of this module, so that the tests of any package may use it.
// It refuses to be imported by anything but tests.
package testenv
