// Package e2e tests the tcpilot program itself: the real binary, attached to a
// cgroup of the test's own, tuning real connections over lab networks.
//
// Its tests need root. TCPILOT_FULL=1 runs them with the connection lengths of the
// documented claims (some 15 minutes); without it they are as short as is reliable.
// TCPILOT_BIN names a binary to test instead of building one.
//
// It refuses to test what a package can test by itself.
package e2e
