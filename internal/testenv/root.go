package testenv

import (
	"os"
	"regexp"
	"testing"
)

// rootTestsVar is the environment variable that makes skipped root tests fail. It is set to 1
// where root tests must run, so that no test is skipped unnoticed.
const rootTestsVar = "TCPILOT_ROOT_TESTS"

// lacksVar is the environment variable with the features that the kernel is known to lack: a
// regular expression of reasons for which a test may be skipped even if rootTestsVar is 1.
// test/vm/gotest sets it for the oldest kernel.
const lacksVar = "TCPILOT_KERNEL_LACKS"

// Root skips the test unless it runs as root; if rootTestsVar is 1, the test fails instead.
// Tests that call it are named TestRoot...
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	Missing(t, "needs root")
}

// Missing ends a test because its environment lacks something: it skips the test, or fails it
// if rootTestsVar is 1.
func Missing(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(rootTestsVar) == "1" && !known(why) {
		t.Fatalf("%s, and %s=1 forbids to skip", why, rootTestsVar)
	}
	t.Skip(why)
}

// known reports whether the reason matches what the kernel is known to lack.
func known(why string) bool {
	lacks := os.Getenv(lacksVar)
	return lacks != "" && regexp.MustCompile(lacks).MatchString(why)
}
