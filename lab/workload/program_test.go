package workload

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/measure"
	"github.com/tcpilot/tcpilot/lab/topology"
)

func TestRootIperf3(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	families(t, func(t *testing.T, ipv6 bool) {
		r := run(t, f, Spec{Kind: Iperf3, Duration: time.Second, Streams: 2, CC: "reno", Sample: 200 * time.Millisecond, IPv6: ipv6})
		if len(r.Connections) != 2 || len(r.Points) < 2*4 {
			t.Fatalf("%d connections, %d points", len(r.Connections), len(r.Points))
		}
		for _, c := range r.Connections {
			if !kernel(c) || c.CC != "reno" || c.Elapsed < 900*time.Millisecond || c.From != "sender1" {
				t.Errorf("record %+v", c)
			}
		}
		for host, c := range r.CPU {
			if c.System < 10*time.Millisecond {
				t.Errorf("%s spent %v", host, c)
			}
		}
	})
}

func TestRootWrk(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	families(t, func(t *testing.T, ipv6 bool) {
		r := run(t, f, Spec{Kind: Wrk, Duration: time.Second, Concurrency: 4, Size: Size{Fixed: 10_000}, IPv6: ipv6})
		total := r.Totals["wrk"]
		if total.Connections < 100 || total.Bytes != total.Connections*10_000 {
			t.Errorf("totals %+v", total)
		}
		if n := len(r.Requests); n < 100 || n > keep {
			t.Errorf("%d requests", n)
		}
		if !slices.IsSortedFunc(r.Requests, func(a, b measure.Request) int { return int(a.Elapsed - b.Elapsed) }) {
			t.Error("latencies are not sorted")
		}
		for host, c := range r.CPU {
			if c.System < 10*time.Millisecond {
				t.Errorf("%s spent %v", host, c)
			}
		}
	})
}

func TestParseIperf3Error(t *testing.T) {
	_, err := parseIperf3([]byte(`{"start":{},"intervals":[],"end":{},"error":"error - unable to connect to server: Connection refused"}`))
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error is %v", err)
	}
	if _, err := parseIperf3([]byte("iperf3: not JSON")); err == nil {
		t.Error("nonsense was read")
	}
}

func TestParseWrk(t *testing.T) {
	r, err := parseWrk("Running 1s test\n  1 threads\ntcpilot 7 1000123 1 2 3 4 5\n10 4\n20 4\n900 2\n")
	if err != nil {
		t.Fatal(err)
	}
	if r.requests != 7 || r.elapsed != 1000123*time.Microsecond || r.errors != [5]uint64{1, 2, 3, 4, 5} || len(r.latencies) != 3 {
		t.Errorf("read %+v", r)
	}
	for n, want := range map[int][]time.Duration{
		100: {10, 10, 10, 10, 20, 20, 20, 20, 900, 900}, // no more than there are
		5:   {10, 10, 20, 20, 900},
		1:   {20},
	} {
		for i := range want {
			want[i] *= time.Microsecond
		}
		if got := r.quantiles(n); !slices.Equal(got, want) {
			t.Errorf("%d quantiles are %v, want %v", n, got, want)
		}
	}
	for _, text := range []string{"", "tcpilot 1 2", "tcpilot 7 1000123 1 2 3 4 5\nmany"} {
		if _, err := parseWrk(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestListens(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue
   0: 0100007F:14B4 00000000:0000 0A 00000000:00000000
   1: 0100007F:14B5 0100007F:14B4 01 00000000:00000000
`
	for port, want := range map[int]bool{0x14b4: true, 0x14b5: false, 0x4b4: false} {
		if got := listens(table, port); got != want {
			t.Errorf("listens on %d: %v, want %v", port, got, want)
		}
	}
}
