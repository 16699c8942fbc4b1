package cli

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestFmtSwitched(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &engine.Switched{To: tcp.CCOf("bbr"), Since: now.Add(-time.Minute), Switched: engine.RunningGroup{Connections: 3, Goodput: 1e6, Retrans: 0.01}}
	check := func(want string) {
		t.Helper()
		if got := fmtSwitched(s, now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	check("connections get bbr: 3 did (8.00 Mbit/s, 1.0% retransmitted), none kept their arm, gain -; begun 1m00s ago")
	s.Kept = engine.RunningGroup{Connections: 6, Goodput: 5e5}
	s.Gain = engine.Gain{Ratio: 2, Low: 1.1, High: 3.6, Treated: 6, HeldOut: 6}
	check("connections get bbr: 3 did (8.00 Mbit/s, 1.0% retransmitted), 6 kept their arm (4.00 Mbit/s, 0.0% retransmitted), gain 2.00x (1.10x to 3.60x, by connections); begun 1m00s ago")
	s.Stopped = &engine.LeftToDefault{Why: "they were worse", Since: now, Until: now.Add(10 * time.Minute)}
	check("connections keep their arm for 10m00s: they were worse")
}
