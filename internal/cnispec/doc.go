// Package cnispec has the versions of the Container Network Interface that tcpilot-cni supports. The plugin and
// the program that installs it have to agree on them.
//
// It refuses to know what differs between the versions: that is in package cni.
package cnispec
