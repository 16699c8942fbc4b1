// Package policy turns what the operator stated and what the learner believes
// into what is done: rules are compiled into a class.Table, and rule and belief
// of a path into a path.Policy, with a Reason from a closed list.
//
// It refuses to look anything up: the ids of cgroups and network namespaces, the time,
// and which congestion controls exist are passed in.
package policy
