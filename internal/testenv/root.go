package testenv

import (
	"os"
	"testing"
)

// RootTests is the environment variable that turns a missing root into a
// failure: set to 1 where root tests must run, so that a skip cannot rot.
const RootTests = "TCPILOT_ROOT_TESTS"

// Root skips the test unless it runs as root. Where RootTests is 1 it fails
// instead. Tests that call it are named TestRoot...
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	Missing(t, "needs root")
}

// Missing ends a test whose surroundings lack something: a skip, or a failure
// where RootTests is 1.
func Missing(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(RootTests) == "1" {
		t.Fatalf("%s, and %s=1 forbids to skip", why, RootTests)
	}
	t.Skip(why)
}
