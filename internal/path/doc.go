// Package path defines paths: a path is a class of connections, a scope, and a remote prefix.
// It has the key of a path, and the policy that a path gives to its connections.
//
// It refuses to decide anything: it tells which prefix a sample belongs to, not what to do.
package path
