// Package pod defines what a pod of this host is, which pods a rule selects, and the set of the present pods.
//
// It refuses what cannot be the id of a container, the name of an interface or the name of a pod:
// files are named after the first two (package podrecord), and terminals and metrics show the last.
package pod
