// Package policy compiles rules into a class.Table, and turns the rule and the belief of a
// path into a path.Policy with a Reason from a closed list.
//
// It refuses to look anything up: the ids of cgroups and network namespaces, the time,
// and which congestion controls exist are passed in.
package policy
