package tcpinfo

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// The kernel counts all timeouts of a connection since 6.7 (tcpi_total_rto).
func TestCountsTimeouts(t *testing.T) {
	if got, err := CountsTimeouts(); err != nil || got != testenv.SinceLinux(t, 6, 7) {
		t.Errorf("counts timeouts: %v, %v", got, err)
	}
}
