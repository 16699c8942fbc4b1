package load

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel counts retransmission timeouts since 6.7 (tcpi_total_rto).
func TestCountsRTOs(t *testing.T) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if got, want := CountsRTOs(), major > 6 || major == 6 && minor >= 7; got != want {
		t.Errorf("%s counts RTOs: %v, want %v", release, got, want)
	}
}
