// Package class puts connections into classes: the compiled form of the
// operator's rules, as the datapath executes it.
//
// Each dimension of a connection (remote prefix, local prefix, ports, cgroup,
// network namespace, direction) maps to the set of rules that it satisfies; the
// sets are intersected, and the lowest rule left gives the class. The cost does
// not depend on how many rules there are.
//
// It refuses to read rules: package policy compiles them.
package class
