package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/api/apitest"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestConnectionsWide(t *testing.T) {
	w := newWorld(t)
	w.fake.Feed = 5 // the last has a state of its congestion control
	w.run(t.Context(), "connections", "--wide", "--count", "5").golden(t, "connections-wide")
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
	ledbat.Control = tcp.ControlState{MinRTT: 80, InflightHi: tcp.NoBound, InflightLo: tcp.NoBound, Mode: 2, Flags: tcp.ControlKnown}
	a.renderLive(&out, []api.Sample{api.FromSample(&s), api.FromSample(&ledbat)})
	result{stdout: out.String()}.golden(t, "live")
}
