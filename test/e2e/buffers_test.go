package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// longFat is a world of one remote 200 ms away behind 300 Mbit/s, whose bandwidth-delay product
// of 7.5 MB is more than the client's buffers hold, 4 MB at most.
func longFat(t *testing.T) *world {
	w := newPlainWorld(t, "far")
	shape(t, w.star.Entry, w.star.Access, link.Spec{Rate: 300e6, Delay: 100 * time.Millisecond, Queue: link.Queue{Bytes: 4 << 20}})
	shape(t, w.remotes[0].Near, w.remotes[0].Far, link.Spec{Rate: 300e6, Delay: 100 * time.Millisecond, Queue: link.Queue{Bytes: 4 << 20}})
	must(t, w.star.Client.SetSysctl("net.ipv4.tcp_wmem", "4096 16384 4194304"))
	must(t, w.star.Client.SetSysctl("net.ipv4.tcp_rmem", "4096 131072 4194304"))
	must(t, w.remotes[0].Host.SetSysctl("net.ipv4.tcp_wmem", "4096 16384 33554432"))
	must(t, w.remotes[0].Host.SetSysctl("net.ipv4.tcp_rmem", "4096 131072 33554432"))
	return w
}

// limit is the maximum of tcp_rmem or tcp_wmem of the client's namespace.
func (w *world) limit(t *testing.T, sysctl string) string {
	t.Helper()
	value, err := w.star.Client.Sysctl(sysctl)
	must(t, err)
	f := strings.Fields(value)
	return f[len(f)-1]
}

const adaptBuffers = "buffers: {adapt: true, max: 16MiB}\n"

// Connections that are bound by a buffer get more, in either direction.
// The limits go back at the end, also those of a daemon that was killed, but not one that an
// administrator has changed.
func TestRootBufferLimitsFollowConnections(t *testing.T) {
	t.Parallel()
	w := longFat(t)
	p := startTcpilot(t, w, settings{keys: adaptBuffers,
		rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: [cubic]}}\n"})
	raised := func() bool {
		return w.limit(t, "net.ipv4.tcp_wmem") != "4194304" && w.limit(t, "net.ipv4.tcp_rmem") != "4194304"
	}
	for n := 0; !raised(); n++ {
		if n == 8 { // a machine that stalls bounds some connections by their congestion windows
			t.Fatalf("after %d connections each way tcp_wmem is %s and tcp_rmem is %s", 2*n, w.limit(t, "net.ipv4.tcp_wmem"), w.limit(t, "net.ipv4.tcp_rmem"))
		}
		bothWays(t, w, 2)
		for end := time.Now().Add(5 * time.Second); !raised() && time.Now().Before(end); { // tcpilot decides
			time.Sleep(200 * time.Millisecond)
		}
	}
	status := p.status(t)
	for _, y := range status.Yields {
		if y.NetNS == "" {
			t.Errorf("tcpilot yields to itself: %+v", y)
		}
	}
	if status.Buffers == nil || len(status.Buffers.Limits) != 2 {
		t.Fatalf("status shows %+v, want two raised limits", status.Buffers)
	}
	for _, l := range status.Buffers.Limits {
		if got := w.limit(t, l.Sysctl); l.Original != 4<<20 || fmt.Sprint(l.Limit) != got || l.Why == "" {
			t.Errorf("status shows %+v, and the limit is %s", l, got)
		}
	}

	p.kill()
	p.start(t)
	if s := p.status(t).Buffers; s == nil || len(s.Limits) != 2 {
		t.Errorf("after a crash, status shows %+v, want the two limits that were raised before", s)
	}
	must(t, w.star.Client.SetSysctl("net.ipv4.tcp_rmem", "4096 131072 5000000")) // an administrator's
	p.stop(t)
	if got := w.limit(t, "net.ipv4.tcp_wmem"); got != "4194304" {
		t.Errorf("after the end the maximum of tcp_wmem is %s, want what it was", got)
	}
	if got := w.limit(t, "net.ipv4.tcp_rmem"); got != "5000000" {
		t.Errorf("after the end the maximum of tcp_rmem is %s, want the administrator's", got)
	}
}

func TestMeasureBufferLimits(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w := longFat(t)
		p := startTcpilot(t, w, settings{keys: adaptBuffers,
			rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: [cubic]}}\n"})
		upload := func() float64 {
			return bulk(t, w.client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 10 * time.Second}).Goodput
		}
		before := upload()
		for range 3 {
			upload()
			time.Sleep(5 * time.Second)
		}
		after := upload()
		testenv.AtLeast(m, "one upload, 300 Mbit/s, 200 ms: goodput with raised limits, of that without", after/before, 1.2)
		testenv.AtLeast(m, "limits raised", len(p.status(t).Buffers.Limits), 1)
	})
}

// bothWays makes n uploads and n downloads at once.
func bothWays(t *testing.T, w *world, n int) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 2 * n {
		all.Go(func() {
			s := load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 8 * time.Second, Download: i%2 == 0}
			if _, err := w.client.Bulk(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
