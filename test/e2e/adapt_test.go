package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// adaptSyn learns for the first remote's network, and adapts the timeout of SYNs.
const adaptSyn = "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: [cubic], hold_out: 0}, adapt: syn_rto}\n"

// newKnownPath is a world with a path of 10 ms that tcpilot has measured, and adapts the
// timeout of SYNs to.
func newKnownPath(t *testing.T) (*world, *tcpilot) {
	t.Helper()
	w := newWorld(t, "far")
	reshape(t, w.remotes[0].way, func(s *link.Spec) { s.Delay = delay })
	p := startTcpilot(t, w, settings{rules: adaptSyn})
	newSeries(t, p, w.remotes[0], length()).many(t, w, 15)
	eventually(t, 10*time.Second, "the timeout of SYNs is adapted", func() error {
		e := ask[api.Explanation](t, p, "explain", w.remotes[0].Addr4.String())
		for _, f := range e.Fields {
			if f.Field == "syn_rto" && f.Applied && f.Reason == "metrics" && f.Value == 125 {
				return nil
			}
		}
		return fmt.Errorf("fields are %+v, metrics %+v", e.Fields, e.Path)
	})
	return w, p
}

// connectLosingSYN connects while the path loses the first SYN, and returns how long that took.
func connectLosingSYN(t *testing.T, w *world, client *load.Agent) time.Duration {
	t.Helper()
	r := w.remotes[0]
	w.setLoss(t, r, 1)
	done := make(chan load.FlowsResult, 1)
	go func() {
		got, err := client.Flows(t.Context(), load.FlowsSpec{To: fmt.Sprintf("%s:%d", r.Addr4, port), Account: 1,
			Flows: []load.Flow{{Size: 1000}}, Concurrency: 1, Duration: 10 * time.Second})
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	time.Sleep(60 * time.Millisecond) // the SYN went out, and was lost
	w.setLoss(t, r, 0)
	got := <-done
	if len(got.Connections) != 1 || got.Connections[0].Error != "" {
		t.Fatalf("%+v", got.Connections)
	}
	return got.Connections[0].Connect
}

// A lost SYN costs a second by default. On a path whose round-trip time is known, it costs
// little more than the timeout that was adapted to it.
func TestRootLostSYNOnAKnownPath(t *testing.T) {
	w, _ := newKnownPath(t)
	tuned, beside := connectLosingSYN(t, w, w.client), connectLosingSYN(t, w, w.beside)
	t.Logf("connect took %v, %v without tcpilot", tuned, beside)
	if tuned < 120*time.Millisecond || tuned > 700*time.Millisecond || beside < time.Second {
		t.Error("want between 120 and 700 ms, and a second or more without tcpilot")
	}
}

// TestMeasureLostSYN is the claim: at most 150 ms on a path of 10 ms.
func TestMeasureLostSYN(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w, _ := newKnownPath(t)
		testenv.AtMost(m, "connect with a lost SYN, ms", connectLosingSYN(t, w, w.client).Milliseconds(), 150)
	})
}

// Connections of a path that is known and not filled begin with a larger window, which their
// samples report. Before anything is known, they begin with the kernel's.
func TestRootInitialWindowOnAKnownPath(t *testing.T) {
	w := newWorld(t, "far")
	r := w.remotes[0]
	// So long that delays of a busy machine do not look like a queue.
	reshape(t, r.way, func(s *link.Spec) { s.Delay, s.Rate, s.Queue = 8*delay, 0, link.Queue{} })
	p := startTcpilot(t, w, settings{rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: [cubic], hold_out: 0}, adapt: [init_cwnd]}\n"})
	samples := p.follow(t)
	transfer := func() uint16 {
		sent := bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: 200 * time.Millisecond})
		window := uint16(0)
		eventually(t, 10*time.Second, "the sample of a connection", func() error {
			s, ok := samples.find(of(sent))
			if !ok {
				return fmt.Errorf("no sample of %+v", sent)
			}
			window = s.InitCwnd
			return nil
		})
		return window
	}
	if got := transfer(); got != 0 {
		t.Errorf("the first connection began with a window of %d", got)
	}
	most := uint16(0)
	for n := 0; n < 100 && most == 0; n++ {
		most = transfer()
	}
	if most <= 10 || most > 64 {
		t.Errorf("connections begin with %d packets, want 11 to 64\n%s", most, newSeries(t, p, r, 0).known(t))
	}
}
