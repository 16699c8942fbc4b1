// Package e2e tests the tcpilot program itself: the real binary, attached to a
// cgroup of the test's own, tuning real connections over lab networks.
//
// Its tests need root. TCPILOT_FULL=1 runs them at the lengths of the claims
// (some 15 minutes); without it they are as short as they can be and still tell
// right from wrong. TCPILOT_BIN names a binary to test instead of building one.
package e2e
