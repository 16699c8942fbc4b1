package cli

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/api/apitest"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestConnectionsWide(t *testing.T) {
	w := newWorld(t)
	w.fake.Feed = 5 // the last one has congestion control state
	w.run(t.Context(), "connections", "--wide", "--count", "5").golden(t, "connections-wide")
}

// Lines fit the terminal; a wider terminal shows more columns.
func TestConnectionsFitTheTerminal(t *testing.T) {
	w := newWorld(t)
	w.fake.Feed = 5
	columns := 0
	for _, width := range []int{20, 80, 100, 120, 160, 240} {
		w.env.Width = width
		r := w.run(t.Context(), "connections", "--count", "5")
		head, _, _ := strings.Cut(r.stdout, "\n")
		if n := len(strings.Fields(head)); n < columns {
			t.Errorf("%d words in the heading at width %d, %d at less", n, width, columns)
		} else {
			columns = n
		}
		for line := range strings.Lines(r.stdout) {
			if n := len(strings.TrimSuffix(line, "\n")); n > max(width, 80) {
				t.Errorf("width %d: %d columns: %s", width, n, line)
			}
		}
		if !strings.Contains(r.stdout, "198.51.100.1:50001 -> 192.0.2.7:443") {
			t.Errorf("width %d: no local address in\n%s", width, r.stdout)
		}
		if width == 100 {
			r.golden(t, "connections-100")
		}
	}
	for _, want := range []string{"TIME", "RULE", "KIND", "MODE", "DURATION", "MIN RTT", "NOTE"} {
		if r := w.run(t.Context(), "connections", "--count", "1"); !strings.Contains(r.stdout, want) {
			t.Errorf("no %s at width %d", want, w.env.Width)
		}
	}
}

// Addresses are never cut: if they are too long, the other cells follow on the next line.
func TestLongAddressesHaveTheirOwnLine(t *testing.T) {
	s := api.Sample{Local: netip.MustParseAddrPort("[2001:db8:1234:5678:9abc:def0:1234:5678]:50001"), Remote: netip.MustParseAddrPort("[2001:db8::1]:443"),
		CC: "cubic"}
	s.BytesAcked = 1000
	line := func(width int) string {
		return sampleLine(sampleLines(width, false, false), func(c *sampleColumn) string { return c.cell(&s) })
	}
	want := "00:00:00 [2001:db8:1234:5678:9abc:def0:1234:5678]:50001 <- [2001:db8::1]:443\n" +
		strings.Repeat(" ", 8+1+46+1) + "cubic            1.00 kB"
	if got := line(80); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := line(0); strings.Contains(got, "\n") {
		t.Errorf("more than a line where there is no limit:\n%s", got)
	}
}

func TestRenderLive(t *testing.T) {
	a := &app{Env: Env{Now: func() time.Time { return apitest.Now }}, Output: console.NewOutput(console.Streams{})}
	var out bytes.Buffer
	a.renderLive(&out, nil)
	if out.Len() != 0 {
		t.Errorf("no samples make %q", out.String())
	}
	s := apitest.Sample(4)
	s.At = apitest.Now.Add(-4 * time.Second).UnixNano()
	ledbat := s
	ledbat.CC, ledbat.Flags = apitest.CC("tcpilot_ledbat"), 0
	ledbat.CCState = tcp.CCState{MinRTT: 80, InflightHi: tcp.NoBound, InflightLo: tcp.NoBound, Mode: 2, Flags: tcp.CCFlagKnown}
	a.renderLive(&out, []api.Sample{api.FromSample(&s), api.FromSample(&ledbat)})
	result{stdout: out.String()}.golden(t, "live")
}
