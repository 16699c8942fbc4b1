package load

import (
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// newServer serves on loopback until the test ends.
func newServer(t *testing.T) (at string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	serve(l)
	return l.Addr().String()
}

func TestBulkUpload(t *testing.T) {
	at := newServer(t)
	const d = 200 * time.Millisecond
	begin := time.Now()
	r, err := bulk(t.Context(), BulkSpec{To: at, Duration: d, CC: "reno"})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	if r.CCStart != "reno" || r.CCEnd != "reno" {
		t.Errorf("congestion control %s to %s, want reno", r.CCStart, r.CCEnd)
	}
	if r.BytesAcked == 0 || r.Received == 0 || r.Received > 2*r.BytesAcked {
		t.Errorf("acknowledged %d, received %d", r.BytesAcked, r.Received)
	}
	if r.Elapsed < d || r.Elapsed > took || took > 15*d {
		t.Errorf("sent for %s of %s, asked %s", r.Elapsed, took, d)
	}
	if want := float64(r.Received) * 8 / d.Seconds(); r.Goodput != want {
		t.Errorf("goodput %.0f, want %.0f", r.Goodput, want)
	}
	if r.Remote.String() != at || r.MinRTT == 0 {
		t.Errorf("remote %s, min_rtt %s", r.Remote, r.MinRTT)
	}
}

func TestBulkEnds(t *testing.T) {
	at := newServer(t)
	const d = 100 * time.Millisecond
	const long = 3 * time.Second
	for _, download := range []bool{false, true} {
		begin, end := time.Now(), Now().Add(d)
		r, err := bulk(t.Context(), BulkSpec{To: at, Duration: long, End: end, Download: download})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > long/2 || Now() < end {
			t.Errorf("download %v: it took %s, asked %s", download, took, d)
		}
		if r.Elapsed <= 0 || r.Elapsed > long/2 || r.Goodput < float64(r.Received)*8/d.Seconds() {
			t.Errorf("download %v: sent for %s, %d bytes, goodput %.0f", download, r.Elapsed, r.Received, r.Goodput)
		}
	}
	// A connection that is established after its end still has a goodput.
	r, err := bulk(t.Context(), BulkSpec{To: at, Duration: long, End: Now() - 1})
	if err != nil || r.Elapsed > long/2 || r.CutOff || math.IsNaN(r.Goodput) || math.IsInf(r.Goodput, 0) {
		t.Errorf("after its end: %+v, %v", r, err)
	}
}

func TestBulkDownload(t *testing.T) {
	r, err := bulk(t.Context(), BulkSpec{To: newServer(t), Duration: 100 * time.Millisecond, Download: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Received == 0 || r.CCStart == "" {
		t.Errorf("received %d with %q", r.Received, r.CCStart)
	}
}

func TestBulkLimitIsKept(t *testing.T) {
	const d, limit = 300 * time.Millisecond, 1 << 20
	r, err := bulk(t.Context(), BulkSpec{To: newServer(t), Duration: d, Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(limit * d / time.Second); r.Received > want*3/2 {
		t.Errorf("received %d in %s at %d bytes/s", r.Received, d, limit)
	}
}

func TestBulkAbortResetsTheConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	end := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			end <- err
			return
		}
		defer c.Close()
		buf := make([]byte, chunk)
		for err == nil {
			_, err = c.Read(buf)
		}
		end <- err
	}()
	r, err := bulk(t.Context(), BulkSpec{To: l.Addr().String(), Duration: 50 * time.Millisecond, Abort: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Received == 0 || r.Received != r.BytesAcked {
		t.Errorf("received %d, acknowledged %d: want the same of an aborted upload", r.Received, r.BytesAcked)
	}
	if err := <-end; !strings.Contains(err.Error(), "reset") {
		t.Errorf("server's read ended with %v, want a reset", err)
	}
}

func TestChurnByCount(t *testing.T) {
	one, other := newServer(t), newServer(t)
	for name, s := range map[string]ChurnSpec{
		"one by one":   {Count: 50},
		"four at once": {Count: 50, Workers: 4},
		"large":        {Count: 5, Request: 100_000, Reply: 300_000},
		"two servers":  {Count: 50, To: []string{one, other}},
	} {
		t.Run(name, func(t *testing.T) {
			s.Duration = 5 * time.Second
			if s.To == nil {
				s.To = []string{one}
			}
			r, err := churn(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if r.Connections != uint64(s.Count) || r.Errors != 0 {
				t.Errorf("%d connections, %d errors (%s), want %d", r.Connections, r.Errors, r.FirstError, s.Count)
			}
			if r.CPU.Sum() == 0 || r.Behind != 0 {
				t.Errorf("CPU %v, behind %s without a schedule", r.CPU, r.Behind)
			}
		})
	}
}

func TestChurnGoesToEachServerInTurn(t *testing.T) {
	var counts [3]*counting
	var to []string
	for i := range counts {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		counts[i] = &counting{Listener: l}
		serve(counts[i])
		to = append(to, l.Addr().String())
	}
	if _, err := churn(t.Context(), ChurnSpec{To: to, Duration: 5 * time.Second, Count: 30, Workers: 2}); err != nil {
		t.Fatal(err)
	}
	for i, c := range counts {
		if n := c.n.Load(); n != 10 {
			t.Errorf("server %d has %d of 30 connections", i, n)
		}
	}
}

type counting struct {
	net.Listener
	n atomic.Int32
}

func (l *counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

func TestChurnByRate(t *testing.T) {
	s := ChurnSpec{To: []string{newServer(t)}, Duration: 500 * time.Millisecond, Rate: 200, Workers: 4, Keep: 1000, Account: 1}
	r, err := churn(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if r.Connections != 100 || r.Errors != 0 {
		t.Errorf("%d connections, %d errors in 0.5 s at 200 a second", r.Connections, r.Errors)
	}
	evenly(t, r.Kept, 5*time.Millisecond)
}

// evenly checks that connections count from their scheduled times.
func evenly(t *testing.T, kept []Connection, apart time.Duration) {
	t.Helper()
	slices.SortFunc(kept, func(a, b Connection) int { return int(a.Begin - b.Begin) })
	for i, c := range kept {
		if want := kept[0].Begin.Add(time.Duration(i) * apart); c.Begin != want {
			t.Fatalf("connection %d counts from %s after the first, want %s", i, c.Begin.Sub(kept[0].Begin), want.Sub(kept[0].Begin))
		}
	}
}

// stalling is a server that stalls its first connection.
type stalling struct {
	net.Listener
	first sync.Once
	stall time.Duration
}

func (l *stalling) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	l.first.Do(func() { time.Sleep(l.stall) })
	return c, err
}

// A server that stalls blocks the only worker: connections that are due meanwhile count
// as waiting, each from its own scheduled time.
func TestChurnByRateCountsWaiting(t *testing.T) {
	const stall, apart = 300 * time.Millisecond, 10 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	serve(&stalling{Listener: l, stall: stall})
	r, err := churn(t.Context(), ChurnSpec{To: []string{l.Addr().String()}, Duration: 500 * time.Millisecond,
		Rate: float64(time.Second / apart), Keep: 1000, Account: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.Connections != 50 || r.Errors != 0 || len(r.Kept) != 50 {
		t.Fatalf("%d connections, %d errors, %d kept, want all 50: %s", r.Connections, r.Errors, len(r.Kept), r.FirstError)
	}
	evenly(t, r.Kept, apart)
	for i, c := range r.Kept {
		if waited := stall - time.Duration(i)*apart; c.Elapsed < waited || c.Connect > c.Elapsed {
			t.Errorf("connection %d took %s (connect %s), want at least %s", i, c.Elapsed, c.Connect, waited)
		}
	}
	if r.Behind < stall-apart-time.Millisecond {
		t.Errorf("at most %s behind after a stall of %s", r.Behind, stall)
	}
}

// Connections that are due and get no worker before the end count as errors.
func TestChurnByRateCountsTheMissed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	serve(&stalling{Listener: l, stall: 300 * time.Millisecond})
	s := ChurnSpec{To: []string{l.Addr().String()}, Duration: 100 * time.Millisecond, Rate: 100, Workers: 1,
		Request: orderSize, Reply: 1}
	c := &churner{spec: s, planned: s.planned(), overtime: 50 * time.Millisecond}
	r, err := c.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Connections != 1 || r.Errors != 9 || !strings.Contains(r.FirstError, "9 connections that were due") {
		t.Errorf("%d connections, %d errors (%s), want 1 and 9", r.Connections, r.Errors, r.FirstError)
	}
}

func TestChurnPlansWhatIsDue(t *testing.T) {
	for want, s := range map[uint64]ChurnSpec{
		90:  {Rate: 300, Duration: 300 * time.Millisecond},
		1:   {Rate: 0.1, Duration: time.Second},
		3:   {Rate: 10, Duration: 201 * time.Millisecond},
		7:   {Rate: 10, Duration: time.Minute, Count: 7},
		600: {Rate: 10, Duration: time.Minute, Count: 700},
	} {
		if got := s.planned(); got != want {
			t.Errorf("%v a second for %s, at most %d: %d connections, want %d", s.Rate, s.Duration, s.Count, got, want)
		}
	}
}

func TestChurnCountsErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	r, err := churn(t.Context(), ChurnSpec{To: []string{l.Addr().String()}, Duration: time.Second, Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	if r.Errors != 3 || !strings.Contains(r.FirstError, "refused") {
		t.Errorf("%d errors, first %q", r.Errors, r.FirstError)
	}
}

func TestOrdersHaveBounds(t *testing.T) {
	if _, err := bulk(t.Context(), BulkSpec{To: "127.0.0.1:9", Duration: MaxDuration + 1}); err == nil {
		t.Error("an endless bulk connection was taken")
	}
	for name, s := range map[string]ChurnSpec{
		"no duration":      {Count: 1},
		"too long":         {Duration: MaxDuration + 1},
		"negative count":   {Duration: time.Second, Count: -1},
		"negative rate":    {Duration: time.Second, Rate: -1},
		"too many workers": {Duration: time.Second, Workers: maxWorkers + 1},
		"short request":    {Duration: time.Second, Request: orderSize - 1},
		"huge reply":       {Duration: time.Second, Reply: MaxMessage + 1},
	} {
		s.To = []string{"127.0.0.1:9"}
		if _, err := churn(t.Context(), s); err == nil || !strings.HasPrefix(err.Error(), "check ") {
			t.Errorf("%s was accepted: %v", name, err)
		}
	}
	if _, err := churn(t.Context(), ChurnSpec{Duration: time.Second}); err == nil {
		t.Error("churn to nowhere was taken")
	}
}

func FuzzDecodeOrder(f *testing.F) {
	var b [orderSize]byte
	order{kind: exchange, duration: time.Second, request: 64, reply: 256}.encode(b[:])
	f.Add(b[:])
	f.Add(make([]byte, orderSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < orderSize {
			return
		}
		o, err := decodeOrder(b)
		if err != nil {
			return
		}
		var again [orderSize]byte
		o.encode(again[:])
		if p, err := decodeOrder(again[:]); err != nil || p != o {
			t.Errorf("decoded %+v, after encoding %+v, %v", o, p, err)
		}
	})
}
