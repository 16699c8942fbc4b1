package testenv

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// SinceLinux reports whether the kernel has at least this version.
func SinceLinux(t testing.TB, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var its [2]int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &its[0], &its[1]); err != nil {
		t.Fatal(err)
	}
	return its[0] > major || its[0] == major && its[1] >= minor
}
