package load

import (
	"net"
	"slices"
	"strings"
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
	r, err := bulk(t.Context(), BulkSpec{To: at, Duration: d, CC: "reno"})
	if err != nil {
		t.Fatal(err)
	}
	if r.CCStart != "reno" || r.CCEnd != "reno" {
		t.Errorf("congestion control %s to %s, want reno", r.CCStart, r.CCEnd)
	}
	if r.BytesAcked == 0 || r.Received == 0 || r.Received > 2*r.BytesAcked {
		t.Errorf("acknowledged %d, received %d", r.BytesAcked, r.Received)
	}
	if r.Elapsed < d || r.Elapsed > 3*d {
		t.Errorf("sent for %s, asked %s", r.Elapsed, d)
	}
	if want := float64(r.Received) * 8 / d.Seconds(); r.Goodput != want {
		t.Errorf("goodput %.0f, want %.0f", r.Goodput, want)
	}
	if r.Remote.String() != at || r.MinRTT == 0 {
		t.Errorf("remote %s, min_rtt %s", r.Remote, r.MinRTT)
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
	at := newServer(t)
	for name, s := range map[string]ChurnSpec{
		"one by one":    {Count: 50},
		"four at once":  {Count: 50, Workers: 4},
		"aborted":       {Count: 50, Workers: 2, Abort: true},
		"large":         {Count: 5, Request: 100_000, Reply: 300_000},
		"many requests": {Count: 5, Requests: 20, Request: orderSize, Reply: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s.To, s.Duration = at, 5*time.Second
			r, err := churn(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if r.Connections != uint64(s.Count) || r.Errors != 0 {
				t.Errorf("%d connections, %d errors (%s), want %d", r.Connections, r.Errors, r.FirstError, s.Count)
			}
			if r.CPU.Sum() == 0 || r.P50 == 0 || r.P99 < r.P50 {
				t.Errorf("CPU %v, P50 %s, P99 %s", r.CPU, r.P50, r.P99)
			}
		})
	}
}

func TestChurnByRate(t *testing.T) {
	r, err := churn(t.Context(), ChurnSpec{To: newServer(t), Duration: 500 * time.Millisecond, Rate: 200, Workers: 4})
	if err != nil {
		t.Fatal(err)
	}
	if r.Connections != 100 {
		t.Errorf("%d connections in 0.5 s at 200 a second", r.Connections)
	}
}

func TestSpreadCountsUpByPrefix(t *testing.T) {
	got, err := spread("10.0.255.2:80", 3)
	if want := []string{"10.0.255.2:80", "10.1.0.2:80", "10.1.1.2:80"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("spread = %s, %v, want %s", got, err, want)
	}
	got, err = spread("[fd78:0:ffff::1]:80", 3)
	if want := []string{"[fd78:0:ffff::1]:80", "[fd78:1::1]:80", "[fd78:1:1::1]:80"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("spread = %s, %v, want %s", got, err, want)
	}
	if _, err := spread("host:80", 2); err == nil {
		t.Error("a name was spread")
	}
}

func TestChurnCountsErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	r, err := churn(t.Context(), ChurnSpec{To: l.Addr().String(), Duration: time.Second, Count: 3})
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
		if _, err := churn(t.Context(), s); err == nil {
			t.Errorf("%s was taken", name)
		}
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
