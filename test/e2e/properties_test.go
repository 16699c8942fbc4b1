package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// The tests of this file, of respect_test.go and of cbflags_test.go ask for properties that tools
// of this kind easily lack:
//
//   - An algorithm that the kernel lacks does not stall learning.
//   - Bufferbloat counts against an arm, although the minimum RTT does not see it.
//   - dctcp is not used without ECN.
//   - Each host behind one gateway gets what was learned from it.
//   - The application's choice and the administrator's sysctl are kept.
//   - A killed daemon leaves kernel defaults.
//   - IPv4 clients of a dual-stack listener are known by their own address.
//   - Slow links and connections ended by RST are scored, application-limited ones are not.
//   - What was learned is kept across restarts.
//   - Neither fentry nor kprobes are needed to start.
//   - Callback flags of other sock_ops programs survive.
//   - Only the owners of the socket are served.

// lossy is a world of one remote behind 5 % loss, where bbr has several times the goodput
// of the others.
func lossy(t *testing.T) (*world, *remote) {
	t.Helper()
	w := newWorld(t, "far")
	w.setLoss(t, w.remotes[0], 0.05)
	return w, w.remotes[0]
}

func TestRootMissingAlgorithmDoesNotStallLearning(t *testing.T) {
	t.Parallel()
	w, r := lossy(t)
	const missing = "no_such_cc"
	p := startTcpilot(t, w, settings{arms: missing + ", cubic, bbr"})
	s := newSeries(t, p, r, length())
	s.until(t, w, "bbr")
	if arms := p.status(t).Arms; slices.Contains(arms.Active, tcp.CCOf(missing)) {
		t.Errorf("%s is active, want it to be missing or retired: %+v", missing, arms)
	}
	for _, a := range p.path(t, "10.77.1.0/24").Arms {
		if a.CC.String() == missing && a.Count > 0 {
			t.Errorf("%s was scored %d times", missing, a.Count)
		}
	}
}

// reno fills the queue and bbr does not; their goodput is the same.
func TestRootBufferbloatCountsAgainstAnArm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	must(t, w.star.Client.SetCongestion("reno"))
	r := w.remotes[0]
	reshape(t, w.back, func(s *link.Spec) { s.Delay = 20 * time.Millisecond })
	reshape(t, r.way, func(s *link.Spec) { s.Rate, s.Queue = 20e6, link.Queue{Packets: 400} })
	s := newSeries(t, startTcpilot(t, w, settings{arms: "reno, bbr", objective: "latency"}), r, max(length(), 400*time.Millisecond))
	// A full queue takes 240 ms, and a closed connection lives until its last packet is
	// acknowledged: without a pause, connections would overlap, and trials be rationed.
	s.pause = 250 * time.Millisecond
	s.until(t, w, "bbr")
}

func TestRootNoDCTCPWithoutECN(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	p := startTcpilot(t, w, settings{rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: auto}}\n"})
	s := newSeries(t, p, w.remotes[0], 150*time.Millisecond)
	s.many(t, w, 12)
	if n := starts(s.learned, "dctcp"); n > 0 {
		t.Errorf("%d of 12 connections without ECN start with dctcp", n)
	}
}

func TestRootEachHostBehindAGatewayHasItsOwnPath(t *testing.T) {
	t.Parallel()
	w, p, bad, good := badAndGood(t)
	for range 10 {
		good.one(t, w)
		bad.one(t, w)
	}
	bad.until(t, w, "bbr")
	for prefix, least := range map[string]uint64{"10.77.1.0/24": 5, "10.77.2.0/24": 5} {
		eventually(t, 15*time.Second, "connections of either host are scored", func() error {
			if n := scored(p.path(t, prefix)); n < least {
				return fmt.Errorf("path %s has %d scored connections, want at least %d", prefix, n, least)
			}
			return nil
		})
	}
	// The belief about one path does not depend on the other.
	of := func(prefix string) (rate uint64) {
		for _, a := range p.path(t, prefix).Arms {
			rate = max(rate, a.Rate)
		}
		return rate
	}
	if b, g := of("10.77.1.0/24"), of("10.77.2.0/24"); b == 0 || g == 0 || b == g {
		t.Errorf("the bad host's best delivery rate is %d bytes/s, the good one's %d", b, g)
	}
}

// badAndGood is a world of a bad and a good host behind one gateway.
func badAndGood(t *testing.T) (w *world, p *tcpilot, bad, good *series) {
	t.Helper()
	w = newWorld(t, "bad", "good")
	w.setLoss(t, w.remotes[0], 0.05)
	p = startTcpilot(t, w, settings{})
	return w, p, newSeries(t, p, w.remotes[0], length()), newSeries(t, p, w.remotes[1], length())
}

// Neither host's connections are slower because of the other's.
func TestMeasureGoodAndBadHost(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		const learning, judged = 14, 9
		w, _, bad, good := badAndGood(t)
		for range learning {
			bad.one(t, w)
			good.one(t, w)
		}
		for i := range judged {
			for _, s := range []*series{bad, good} {
				s.one(t, w)
				s.oneAlone(t, w, arms[i%len(arms)])
			}
		}
		for name, s := range map[string]*series{"bad": bad, "good": good} {
			_, alone := s.best()
			testenv.AtLeast(m, name+" host: goodput, of the best arm's", goodput(s.last(judged))/alone, 0.85)
		}
		testenv.AtLeast(m, "bad host: of 9 with bbr", starts(bad.last(judged), "bbr"), judged-1)
	})
}

func TestRootDualStackClientsHaveTheirOwnAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	// In this test the server is tuned: [::] accepts both families.
	server := w.agent(t, w.remotes[0].Host, w.cgroup)
	_, err := server.Listen(t.Context(), load.ListenSpec{Address: "[::]:5202"})
	must(t, err)
	p := startTcpilot(t, w, settings{})
	f := p.follow(t)
	for _, c := range []struct {
		to     netip.Addr
		prefix string
	}{
		{w.remotes[0].Addr4, "10.77.0.0/24"},
		{w.remotes[0].Addr6, "fd77::/48"},
	} {
		spec := load.BulkSpec{To: netip.AddrPortFrom(c.to, 5202).String(), Duration: 300 * time.Millisecond, Download: true}
		r := bulk(t, w.beside, spec)
		s := f.await(t, from(r))
		if s.Local != r.Remote || slices.Contains(s.Flags, "outgoing") {
			t.Errorf("sample is of %s to %s %q, want an incoming one at %s", s.Remote, s.Local, s.Flags, r.Remote)
		}
		// A path begins with the first connection that is scored: not all are where the server waits for a CPU.
		eventually(t, 15*time.Second, "a path of "+c.prefix, func() error {
			if s := p.path(t, c.prefix); s == nil || s.Samples == 0 {
				bulk(t, w.beside, spec)
				return fmt.Errorf("path is %+v", s)
			}
			return nil
		})
	}
	if s := p.path(t, "::/48"); s != nil {
		t.Errorf("there is a path of the unspecified address: %+v", s)
	}
}

func TestRootSlowLinksAreScored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	r := w.remotes[0]
	// Half of the unit in which bpftune counts rates.
	reshape(t, r.way, func(s *link.Spec) { s.Rate, s.Queue = 4e6, link.Queue{} })
	p := startTcpilot(t, w, settings{holdOut: "0%"})
	s := newSeries(t, p, r, 500*time.Millisecond)
	s.many(t, w, 6)
	eventually(t, 15*time.Second, "all connections are scored", func() error {
		if n := scored(p.path(t, "10.77.1.0/24")); n < 5 {
			return fmt.Errorf("%d of 6 are", n)
		}
		return nil
	})
	for _, a := range p.path(t, "10.77.1.0/24").Arms {
		if a.Count > 0 && (a.Rate < 10e3 || a.Rate > 700e3) {
			t.Errorf("%s has a delivery rate of %d bytes/s on a link of 500,000", a.CC, a.Rate)
		}
	}
}

func TestRootResetConnectionsAreScored(t *testing.T) {
	t.Parallel()
	w, r := lossy(t)
	p := startTcpilot(t, w, settings{holdOut: "0%"})
	f := p.follow(t)
	const n = 8
	for range n {
		c := bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: length(), Abort: true})
		if s := f.await(t, of(c)); s.End != "aborted" || s.BytesAcked == 0 {
			t.Errorf("sample of an aborted connection ended %q with %d bytes", s.End, s.BytesAcked)
		}
	}
	eventually(t, 15*time.Second, "they are scored", func() error {
		if got := scored(p.path(t, "10.77.1.0/24")); got < n-1 {
			return fmt.Errorf("%d of %d are", got, n)
		}
		return nil
	})
}

func TestRootApplicationLimitedConnectionsAreNotScored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	p := startTcpilot(t, w, settings{holdOut: "0%"})
	f := p.follow(t)
	for range 4 {
		c := bulk(t, w.client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: time.Second, Limit: 30_000})
		t.Logf("%+v", f.await(t, of(c)))
	}
	tiny, err := w.client.Churn(t.Context(), load.ChurnSpec{To: []string{at(w.remotes[0].Addr4)}, Duration: 5 * time.Second, Count: 20})
	must(t, err)
	if tiny.Connections != 20 {
		t.Fatalf("%d of 20 tiny connections: %s", tiny.Connections, tiny.FirstError)
	}
	time.Sleep(time.Second) // by now they would be scored
	if n := scored(p.path(t, "10.77.1.0/24")); n > 0 {
		t.Errorf("%d application-limited connections were scored", n)
	}
}

func TestRootSampleNamesBothEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	p := startTcpilot(t, w, settings{})
	f := p.follow(t)
	for _, to := range []netip.Addr{w.remotes[0].Addr4, w.remotes[0].Addr6} {
		c := bulk(t, w.client, load.BulkSpec{To: at(to), Duration: 50 * time.Millisecond})
		if s := f.await(t, of(c)); s.Local != c.Local || s.Remote != c.Remote {
			t.Errorf("sample is of %s to %s, want %s to %s", s.Local, s.Remote, c.Local, c.Remote)
		}
	}
}

func TestRootStartsWithoutFentry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	p := startTcpilot(t, w, settings{rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, set: {cc: reno}}\n"})
	r := bulk(t, w.client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 50 * time.Millisecond})
	if r.CCStart != "reno" {
		t.Errorf("connection starts with %s, want reno by rule", r.CCStart)
	}
	if s := p.status(t); s.Attached.IsZero() {
		t.Errorf("status says it is not attached: %+v", s)
	}
}
