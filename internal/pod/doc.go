// Package pod knows the pods of this host: what a container runtime told the CNI plugin
// tcpilot-cni of each. The plugin writes one record a pod into a directory, whether the
// daemon runs or not; the daemon reads it at its start and whenever the plugin calls it.
//
// It refuses to name a file after anything but a valid container id and interface name, so that
// no record is outside of the directory.
package pod
