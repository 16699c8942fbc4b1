package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// adaptDelack learns for the first remote's network, and adapts DELACK_MAX.
const adaptDelack = "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: [cubic], hold_out: 20%}, adapt: [delack_max]}\n"

// asked is the size of requests, in bytes, and answered that of answers.
const (
	asked    = 200
	answered = 300
)

// answering is how a server answers: with how many writes, and whether with Nagle's algorithm.
type answering struct {
	writes int
	nagle  bool
}

// serve lets a remote answer requests at an address of its own, until the test ends.
func (r *remote) serve(t testing.TB, a answering) (address string) {
	t.Helper()
	var l net.Listener
	must(t, r.Host.Do(func() (err error) {
		l, err = net.Listen("tcp4", r.Addr4.String()+":0")
		return err
	}))
	var all sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				a.answerAll(c.(*net.TCPConn))
			})
		}
	})
	return l.Addr().String()
}

// answerAll answers requests until the client closes the connection.
func (a answering) answerAll(c *net.TCPConn) {
	request, piece := make([]byte, asked), make([]byte, answered/a.writes)
	if c.SetNoDelay(!a.nagle) != nil {
		return
	}
	for {
		if _, err := io.ReadFull(c, request); err != nil {
			return
		}
		for range a.writes {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	}
}

// The servers of these tests: answers in two pieces with Nagle's algorithm, the second of which
// waits for the ACK of the first, and answers in one.
var (
	inPieces = answering{writes: 2, nagle: true}
	inOne    = answering{writes: 1}
)

// request asks a server over and over, and returns how long each answer took. The first ones, whose
// ACKs are not delayed, do not count.
func request(t testing.TB, a *load.Agent, address string, n int, d, think time.Duration) (took []time.Duration) {
	t.Helper()
	got, err := a.RPC(t.Context(), load.RPCSpec{To: address, Account: 1, Request: asked, Reply: answered, Count: n, Duration: d, Think: think})
	must(t, err)
	if got.Error != "" {
		t.Error(got.Error)
	}
	for i, e := range got.Kept {
		if i >= 5 {
			took = append(took, e.Elapsed)
		}
	}
	return took
}

// requestTuned is request by the client that tcpilot tunes, with a connection that is not in the
// hold-out: the samples show whether ACKs were delayed as by the kernel.
func requestTuned(t testing.TB, w *world, samples *tail, address string, n int) (took []time.Duration) {
	t.Helper()
	for range 40 {
		from := samples.len()
		took = request(t, w.client, address, n, 20*time.Second, 0)
		tuned := false
		eventually(t, 10*time.Second, "the connection's sample", func() error {
			samples.mu.Lock()
			defer samples.mu.Unlock()
			for _, s := range samples.samples[from:] {
				if s.Remote.String() == address && s.Kind == "close" {
					tuned = s.DelackMax < 100*ms
					return nil
				}
			}
			return errors.New("there is none")
		})
		if tuned {
			return took
		}
	}
	t.Fatal("all connections are in the hold-out")
	return nil
}

// requests runs several such connections at once, one after another, for a time.
func requests(t testing.TB, a *load.Agent, address string, conns int, d, think time.Duration) {
	t.Helper()
	var all sync.WaitGroup
	for range conns {
		all.Go(func() {
			for end := time.Now().Add(d); time.Now().Before(end); {
				request(t, a, address, 0, 700*ms, think)
			}
		})
	}
	all.Wait()
}

// delackSetting is how tcpilot explains the DELACK_MAX of connections to a remote; the zero Setting
// if it is the kernel's.
func delackSetting(t testing.TB, p *tcpilot, r *remote) engine.Setting {
	t.Helper()
	for _, f := range ask[api.Explanation](t, p, "explain", r.Addr4.String()).Fields {
		if f.Field == "delack_max" && f.Applied {
			return f.Setting
		}
	}
	return engine.Setting{}
}

// newWaitingWorld is a path of 1 ms, and a server whose answers come in two pieces. tcpilot has
// shortened the delay of ACKs for the path by now.
func newWaitingWorld(t *testing.T) (w *world, p *tcpilot, pieces string) {
	t.Helper()
	w = newWorld(t, "far")
	must(t, w.remotes[0].way.Set(link.Spec{Delay: ms / 2}))
	must(t, w.back.Set(link.Spec{Delay: ms / 2}))
	p = startTcpilot(t, w, settings{rules: adaptDelack})
	pieces = w.remotes[0].serve(t, inPieces)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		requests(t, w.client, pieces, 4, 2*time.Second, 0)
		if v := delackSetting(t, p, w.remotes[0]).Value; v == 8000 {
			return w, p, pieces
		}
	}
	t.Fatalf("DELACK_MAX is %+v, path %+v", delackSetting(t, p, w.remotes[0]), p.path(t, "10.77.1.0/24"))
	return nil, nil, ""
}

// A client whose server waits for ACKs gets its answers in a quarter of the time. When its connections
// send late, so that a shorter delay costs additional ACKs, the delay becomes longer again.
func TestRootAdaptedDelackMax(t *testing.T) {
	t.Parallel()
	w, p, pieces := newWaitingWorld(t)
	tuned, beside := requestTuned(t, w, p.follow(t), pieces, 40), request(t, w.beside, pieces, 40, 20*time.Second, 0)
	t.Logf("an answer in two pieces takes %s, %s without tcpilot: %+v", times(tuned), times(beside), delackSetting(t, p, w.remotes[0]))
	if half(tuned) > 20*ms || half(beside) < 38*ms {
		t.Error("want at most 20 ms, and 38 ms or more without tcpilot")
	}
	one := w.remotes[0].serve(t, inOne)
	eventually(t, 40*time.Second, "DELACK_MAX is longer than 8 ms", func() error {
		requests(t, w.client, one, 8, 2*time.Second, 12*ms)
		if s := delackSetting(t, p, w.remotes[0]); s.Value == 8000 {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
	if !strings.Contains(p.log.String(), "delack_max too short for a path") {
		t.Error("the log does not report that")
	}
}

func half(took []time.Duration) time.Duration { return percentile(took, 0.5) }

func percentile(took []time.Duration, share float64) time.Duration {
	slices.Sort(took)
	return took[min(len(took)-1, int(share*float64(len(took))))]
}

// times are the percentiles of durations.
func times(took []time.Duration) string {
	return fmt.Sprintf("p50 %.1f, p95 %.1f, p99 %.1f ms", milli(percentile(took, 0.5)), milli(percentile(took, 0.95)), milli(percentile(took, 0.99)))
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// acknowledged adds up, over connections, segments with data that were received and segments without
// that were sent.
type acknowledged struct{ received, sent uint64 }

func (a acknowledged) String() string {
	return fmt.Sprintf("%.3f ACKs per segment of %d", float64(a.sent)/float64(max(1, a.received)), a.received)
}

// acksOf adds up the samples from a number on, of connections with a shorter delay of ACKs and of those
// with the kernel's.
func (f *tail) acksOf(from int) (short, usual acknowledged) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.samples[from:] {
		a := &usual
		if s.DelackMax < 100*ms {
			a = &short
		}
		a.received += uint64(s.DataSegsIn)
		a.sent += uint64(s.SegsOut - s.DataSegsOut)
	}
	return short, usual
}

// TestMeasureDelayedACKs measures the documented claim: an answer in two pieces takes a third of the time or
// less, at the 95th percentile too. Answers in one piece and downloads take as long, with as many ACKs.
func TestMeasureDelayedACKs(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w, p, pieces := newWaitingWorld(t)
		one := w.remotes[0].serve(t, inOne)
		samples := p.follow(t)
		for _, x := range []struct {
			name    string
			address string
			most    float64 // of the median's ratio
		}{{"two pieces", pieces, 0.34}, {"one piece", one, 1.1}} {
			var tuned, beside []time.Duration
			for range 4 {
				tuned = append(tuned, requestTuned(t, w, samples, x.address, 100)...)
				beside = append(beside, request(t, w.beside, x.address, 100, 20*time.Second, 0)...)
			}
			t.Logf("%s: %s; without tcpilot: %s", x.name, times(tuned), times(beside))
			m.Holds(x.name+": with delack_max adapted", "for comparison", true, times(tuned))
			m.Holds(x.name+": without tcpilot", "for comparison", true, times(beside))
			testenv.AtMost(m, x.name+": ratio of medians", milli(half(tuned))/milli(half(beside)), x.most)
		}
		for name, traffic := range map[string]func(){
			"two pieces":              func() { requests(t, w.client, pieces, 8, 8*time.Second, 0) },
			"one piece, 5 ms between": func() { requests(t, w.client, one, 8, 5*time.Second, 5*ms) },
			"downloads of half a second": func() {
				for range 16 {
					bulk(t, w.client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 500 * ms, Download: true})
				}
			},
		} {
			from := samples.len()
			traffic()
			time.Sleep(500 * ms) // for the last samples
			short, usual := samples.acksOf(from)
			m.Holds(name+": with a shorter delay", "for comparison", true, short.String())
			m.Holds(name+": in the hold-out", "for comparison", true, usual.String())
		}
		var goodput, cost [2][]float64
		for range 4 {
			for i, a := range []*load.Agent{w.client, w.beside} {
				before := machineBusy(t)
				got := bulk(t, a, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 2 * time.Second, Download: true})
				goodput[i] = append(goodput[i], got.Goodput/1e6)
				cost[i] = append(cost[i], milli(machineBusy(t)-before)/(float64(got.Received)/1e9))
			}
		}
		testenv.AtLeast(m, "download: ratio of goodputs", mean(goodput[0])/mean(goodput[1]), 0.95)
		m.Holds("download, Mbit/s: with, and without tcpilot", "for comparison", true, fmt.Sprintf("%.0f, %.0f", mean(goodput[0]), mean(goodput[1])))
		m.Holds("download, CPU ms per GB of the whole host", "for comparison", true, fmt.Sprintf("%.0f, %.0f", mean(cost[0]), mean(cost[1])))
	})
}
