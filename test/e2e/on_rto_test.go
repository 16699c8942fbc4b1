package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// answeredPort is that of connections whose timeouts are answered; those to port are not.
const answeredPort = port + 1

var onRTORules = fmt.Sprintf(`  - {name: answered, match: {remote_port: [%d]}, set: {cc: cubic}, on_rto: {cc: bbr, after: 3}}
  - {name: plain, match: {remote_port: [%d]}, set: {cc: cubic}}
`, answeredPort, port)

// newLossyWorld is a path with both kinds of connections.
func newLossyWorld(t *testing.T, l link.Spec) (*world, *tcpilot) {
	t.Helper()
	w := newWorld(t, "far")
	must(t, w.remotes[0].way.Set(l))
	_, err := w.remotes[0].agent.Listen(t.Context(), load.ListenSpec{Address: fmt.Sprintf("[::]:%d", answeredPort)})
	must(t, err)
	return w, startTcpilot(t, w, settings{rules: onRTORules})
}

// A running connection on a path that takes its window away again and again gets another congestion control. It is
// counted, and explained.
func TestRootOnRTO(t *testing.T) {
	t.Parallel()
	w, p := newLossyWorld(t, link.Spec{Delay: 15 * ms, Rate: 50e6, Loss: 0.15, Queue: link.Queue{Bytes: 125 * kB}})
	r := w.remotes[0]
	samples := p.follow(t)
	to := netip.AddrPortFrom(r.Addr4, answeredPort).String()
	eventually(t, 40*time.Second, "a connection that was answered", func() error {
		sent := bulk(t, w.client, load.BulkSpec{To: to, Duration: 4 * time.Second, Abort: true})
		time.Sleep(time.Second)
		s, ok := samples.find(of(sent))
		if !ok || s.CC != "bbr" {
			return fmt.Errorf("sample %+v, %t", s, ok)
		}
		return nil
	})
	count := func(event string) (n uint64) {
		for _, e := range p.status(t).Counters.Events {
			if e.Rule == "answered" && e.Event == event {
				n += e.Count
			}
		}
		return n
	}
	if answered, all := count("rto-answered"), count("rto"); answered == 0 || all < 3*answered {
		t.Errorf("%d of %d timeouts are counted as answered", answered, all)
	}
	if e := ask[api.Explanation](t, p, "explain", to); e.OnRTO == nil || e.OnRTO.CC.String() != "bbr" || e.OnRTO.After != 3 {
		t.Errorf("explained as %+v", e.OnRTO)
	}
	if e := ask[api.Explanation](t, p, "explain", at(r.Addr4)); e.OnRTO != nil {
		t.Errorf("of a rule without an answer: %+v", e.OnRTO)
	}
}

// TestMeasureOnRTO compares connections whose timeouts are answered with those that keep cubic.
func TestMeasureOnRTO(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		for _, c := range []struct {
			name  string
			link  link.Spec
			least float64
		}{
			{"10 % loss", link.Spec{Delay: 15 * ms, Rate: 50e6, Loss: 0.1, Queue: link.Queue{Bytes: 125 * kB}}, 1.5},
			{"3 % loss", link.Spec{Delay: 15 * ms, Rate: 50e6, Loss: 0.03, Queue: link.Queue{Bytes: 125 * kB}}, 1},
			{"bursts of losses", link.Spec{Delay: 15 * ms, Rate: 50e6, Queue: link.Queue{Bytes: 125 * kB}, Bursts: link.Bursts{ToBad: 0.002, ToGood: 0.05, LossBad: 0.9}}, 1},
			{"no loss", link.Spec{Delay: 15 * ms, Rate: 50e6, Queue: link.Queue{Bytes: 125 * kB}}, 0.95},
		} {
			w, _ := newLossyWorld(t, c.link)
			var sum [2]float64
			for range 2 {
				for i, p := range []int{port, answeredPort} {
					sum[i] += bulk(t, w.client, load.BulkSpec{To: netip.AddrPortFrom(w.remotes[0].Addr4, uint16(p)).String(), Duration: 6 * time.Second, Abort: true}).Goodput
				}
			}
			t.Logf("%s: %.2f Mbit/s, answered %.2f", c.name, sum[0]/2e6, sum[1]/2e6)
			testenv.AtLeast(m, c.name+": goodput of answered connections, of that of the others", sum[1]/sum[0], c.least)
		}
	})
}
