// Package lint checks the rules of this repository, as tests: who may import whom, what a
// package's documentation says, how long a file and the README may be, licence headers, and
// what must not be in the tree.
//
// It refuses to judge style: gofmt, vet and staticcheck do.
package lint
