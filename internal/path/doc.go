// Package path names what is learned about: a path is a class of connections, a
// scope, and a remote prefix. It holds the key, its hierarchy and the policy
// that a path gives to its connections.
//
// It refuses to decide anything: which prefix a sample counts for is asked here, what
// is then done is not.
package path
