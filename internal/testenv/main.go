package testenv

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Main runs a package's tests and fails if they leave descriptors open. It is
// the body of a TestMain and does not return.
func Main(m *testing.M) {
	PreferOverOthers()
	before := openFDs()
	code := m.Run()
	if code == 0 {
		if leaked := leakedFDs(before); len(leaked) > 0 {
			fmt.Fprintf(os.Stderr, "FAIL: descriptors left open:\n\t%s\n", strings.Join(leaked, "\n\t"))
			code = 1
		}
	}
	os.Exit(code)
}

// leakedFDs lists descriptors that are open now and were not before. It runs a garbage
// collection first, because finalizers may close some, and waits up to a second for
// goroutines that are about to close theirs.
func leakedFDs(before map[string]string) []string {
	var leaked []string
	for range 20 {
		runtime.GC()
		leaked = leaked[:0]
		for _, fd := range slices.Sorted(maps.Keys(openFDs())) {
			target, err := os.Readlink(filepath.Join(fdDir, fd))
			if err != nil || before[fd] == target || ofRuntime(target) {
				continue
			}
			leaked = append(leaked, fd+" "+target)
		}
		if len(leaked) == 0 {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return leaked
}

const fdDir = "/proc/self/fd"

// openFDs maps each open descriptor to its target, without the one that reads the directory.
func openFDs() map[string]string {
	entries, err := os.ReadDir(fdDir)
	if err != nil {
		panic(err)
	}
	fds := make(map[string]string, len(entries))
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(fdDir, e.Name())); err == nil {
			fds[e.Name()] = target
		}
	}
	return fds
}

// ofRuntime reports descriptors that Go's runtime opens at the first use of its
// poller and never closes.
func ofRuntime(target string) bool {
	return target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]"
}
