package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

const (
	sackNr      = "net.ipv4.tcp_comp_sack_nr"
	hostProfile = "host: {sysctls: {" + sackNr + ": 7, net.ipv4.tcp_notsent_lowat: 1048576}}\n"
)

// The sysctls of the host profile are set while tcpilot runs. They go back at the end, after a crash at the
// next start, and by detach, but not one that an administrator has changed. tcpilot does not yield fields
// because of them.
func TestRootHostProfile(t *testing.T) {
	t.Parallel()
	w := newPlainWorld(t, "far")
	must(t, w.star.Client.SetSysctl(sackNr, "20"))
	p := startTcpilot(t, w, settings{keys: hostProfile, rules: objectiveRules})
	want := func(when, nr, lowat string) {
		t.Helper()
		if a, b := w.limit(t, sackNr), w.limit(t, "net.ipv4.tcp_notsent_lowat"); a != nr || b != lowat {
			t.Errorf("%s the sysctls are %s and %s, want %s and %s", when, a, b, nr, lowat)
		}
	}
	const usual = "4294967295"
	want("with tcpilot", "7", "1048576")
	s := p.status(t)
	yields := slices.ContainsFunc(s.Yields, func(y engine.Yield) bool { return y.Field != "cc" }) // the namespace has its own, which may be noticed by now
	if len(s.HostSysctls) != 2 || s.HostSysctls[0].Original != "20" || s.HostSysctls[0].Value != "7" || yields {
		t.Errorf("status shows %+v, yields %+v", s.HostSysctls, s.Yields)
	}
	p.stop(t)
	want("after the end", "20", usual)

	p.start(t)
	p.kill()
	want("after a crash", "7", "1048576")
	if out, err := p.run(t, "detach", "--config", p.config); err != nil || !strings.Contains(string(out), sackNr) {
		t.Errorf("detach: %s, %v", out, err)
	}
	want("after detach", "20", usual)

	p.start(t)
	p.kill()
	p.configure(t, settings{rules: objectiveRules})
	p.start(t)
	want("after a crash, without the profile,", "20", usual)

	p.configure(t, settings{keys: hostProfile, rules: objectiveRules})
	p.stop(t)
	p.start(t)
	must(t, w.star.Client.SetSysctl(sackNr, "9")) // an administrator's
	p.stop(t)
	want("after the administrator's change", "9", usual)
}

// segmentsOut are those that the client's namespace has sent.
func (w *world) segmentsOut(t *testing.T) int {
	t.Helper()
	text, err := w.star.Client.Run("cat", "/proc/net/snmp")
	must(t, err)
	n, err := testenv.NetCounter(text, "OutSegs")
	must(t, err)
	return n
}

// TestMeasureSackCompression compares values of the host profile at a receiver: ACKs for each megabyte that arrives, and
// throughput, over a link that loses packets.
func TestMeasureSackCompression(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w := newWorld(t, "far")
		must(t, w.back.Set(link.Spec{Delay: 20 * ms, Rate: 100e6, Loss: 0.01, Queue: link.Queue{Bytes: 250 * kB}}))
		must(t, w.remotes[0].Host.SetCongestion("bbr")) // losses do not slow it down
		acks := map[string]float64{}
		for _, c := range []struct{ nr, delay string }{{"0", "1000000"}, {"44", "1000000"}, {"255", "5000000"}} {
			profile := fmt.Sprintf("host: {sysctls: {%s: %s, net.ipv4.tcp_comp_sack_delay_ns: %s}}\n", sackNr, c.nr, c.delay)
			p := startTcpilot(t, w, settings{keys: profile, rules: objectiveRules})
			before, megabytes, goodput := w.segmentsOut(t), 0.0, 0.0
			for range 2 {
				r := bulk(t, w.client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 4 * time.Second, Download: true})
				megabytes, goodput = megabytes+float64(r.Received)/1e6, goodput+r.Goodput/2e6
			}
			acks[c.nr] = float64(w.segmentsOut(t)-before) / megabytes
			m.Holds("nr "+c.nr+", delay "+c.delay+" ns: segments sent for each MB received; Mbit/s", "", true, fmt.Sprintf("%.0f;%.1f", acks[c.nr], goodput))
			p.stop(t)
		}
		testenv.AtMost(m, "segments sent with 44, of those without compression", acks["44"]/acks["0"], 0.5)
	})
}
