// Package testenv creates the kernel objects that tests need: network namespaces, veth pairs,
// cgroups, sysctls, and a BPF program beside tcpilot's, each undone when the test ends. It also
// runs measurements, which never fail a test.
//
// It refuses to be imported by anything but tests.
package testenv
