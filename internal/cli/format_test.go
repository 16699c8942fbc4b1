package cli

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
)

func TestFormat(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{fmtDuration(0), "-"},
		{fmtDuration(500), "500 ns"},
		{fmtDuration(12300 * time.Nanosecond), "12.3 us"},
		{fmtDuration(12345 * time.Microsecond), "12.3 ms"},
		{fmtDuration(1230 * time.Millisecond), "1.23 s"},
		{fmtDuration(99 * time.Second), "99.0 s"},
		{fmtDuration(3*time.Hour + 12*time.Minute), "3h12m"},
		{fmtMicros(850), "850 us"},
		{fmtAgo(time.Unix(100, 0), time.Unix(40, 0)), "1m00s ago"},
		{fmtAgo(time.Unix(100, 0), time.Time{}), "never"},
		{fmtBytes(0), "0 B"},
		{fmtBytes(999), "999 B"},
		{fmtBytes(1_200_000), "1.20 MB"},
		{fmtBytes(999_999), "1.00 MB"},
		{fmtRate(11_762_500), "94.1 Mbit/s"},
		{fmtRate(0), "-"},
		{fmtRate(1.25e9), "10.0 Gbit/s"},
		{fmtRate(10), "80 bit/s"},
		{fmtShare(0.02), "2.0%"},
		{fmtGain(engine.Gain{}), "-"},
		{fmtGain(engine.Gain{Ratio: 1.4231}), "-"},
		{fmtGain(engine.Gain{Ratio: 1.4231, Low: 1.2, High: 1.7, BySlice: true}), "1.42x (1.20x to 1.70x)"},
		{fmtGain(engine.Gain{Ratio: 0.7, Low: 0.5, High: 0.9}), "0.70x (0.50x to 0.90x, by connections)"},
		{fmtGain(engine.Gain{Ratio: 1.1, Low: 0.9, High: 1.3, BySlice: true}), "unclear (0.90x to 1.30x)"},
		{fmtPeer(&engine.PeerTold{Delack: 8 * time.Millisecond, Receive: 1 << 22, At: time.Unix(40, 0)}, time.Unix(100, 0)),
			"peer delays ACKs by 8.00 ms at most, receives up to 4.19 MB at a time (told 1m00s ago)"},
		{fmtPeer(&engine.PeerTold{LostAt: time.Unix(40, 0)}, time.Unix(100, 0)), "a SYN with the peer option was answered only without it (1m00s ago)"},
		{fmtValue(5000, "us"), "5.00 ms"},
		{fmtValue(1000, "ms"), "1.00 s"},
		{fmtValue(60, "s"), "60.0 s"},
		{fmtValue(1_000_000, "B/s"), "8.00 Mbit/s"},
		{fmtValue(65536, "B"), "65536 B"},
		{fmtValue(1, ""), "1"},
		{wrap([]string{"aa", "bb", "cc"}, 7, "  "), "aa, bb,\n  cc"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}
