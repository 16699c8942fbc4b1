// Package cnispec has the plugin's name, and the versions of the Container Network Interface that it supports. The plugin and
// the program that installs it have to agree on them.
//
// It refuses to know what differs between the versions: that is in package cni.
package cnispec
