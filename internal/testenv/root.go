package testenv

import (
	"os"
	"regexp"
	"testing"
)

// RootTests is the environment variable that makes skipped root tests fail. It is set to 1
// where root tests must run, so that no test is skipped unnoticed.
const RootTests = "TCPILOT_ROOT_TESTS"

// Lacks is the environment variable with the features that the kernel is known to lack: a
// regular expression of reasons for which a test may be skipped even if RootTests is 1.
// test/vm/gotest sets it for the oldest kernel.
const Lacks = "TCPILOT_KERNEL_LACKS"

// Root skips the test unless it runs as root; if RootTests is 1, the test fails instead.
// Tests that call it are named TestRoot...
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	Missing(t, "needs root")
}

// Missing ends a test because its environment lacks something: it skips the test, or fails it
// if RootTests is 1.
func Missing(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(RootTests) == "1" && !known(why) {
		t.Fatalf("%s, and %s=1 forbids to skip", why, RootTests)
	}
	t.Skip(why)
}

// known reports whether reason matches what the kernel is known to lack.
func known(why string) bool {
	lacks := os.Getenv(Lacks)
	return lacks != "" && regexp.MustCompile(lacks).MatchString(why)
}
