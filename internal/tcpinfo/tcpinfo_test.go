package tcpinfo

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel counts all timeouts of a connection since 6.7 (tcpi_total_rto).
func TestCountsTimeouts(t *testing.T) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if got, err := CountsTimeouts(); err != nil || got != (major > 6 || major == 6 && minor >= 7) {
		t.Errorf("%s counts timeouts: %v, %v", release, got, err)
	}
}
