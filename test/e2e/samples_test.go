package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/record"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// recordedRules are those of internal/daemon/testdata/kernel.yaml, with which the
// recording is replayed.
const recordedRules = `  - name: far
    match: {remote: [10.77.0.0/16, "fd77::/16"]}
    learn: {arms: [cubic, bbr, reno], objective: throughput}
`

// TestRecordSamples writes the samples that the tests replay, test/samples/kernel.tcpilot,
// through tcpilot record: real connections to a clean host, to one behind 5 % loss, and to
// one behind a slow link with a long queue, over IPv4 and IPv6, of which some are reset
// and some are limited by their application. TCPILOT_SAMPLES names the file: make samples.
func TestRecordSamples(t *testing.T) {
	file := os.Getenv("TCPILOT_SAMPLES")
	if file == "" {
		t.Skip("writes recorded samples: make samples")
	}
	w := newWorld(t, "clean", "lossy", "slow")
	w.setLoss(t, w.remotes[1], 0.05)
	reshape(t, w.remotes[2].way, func(s *link.Spec) { s.Rate, s.Queue = 20e6, link.Queue{Packets: 500} })
	p := startTcpilot(t, w, settings{rules: recordedRules, holdOut: "10%"})
	before := p.clients(t)
	var log bytes.Buffer
	rec := exec.Command(p.bin, "record", file, "--force", "--socket", p.socket)
	rec.Stdout, rec.Stderr = &log, &log
	must(t, rec.Start())
	eventually(t, 15*time.Second, "the recorder's stream", func() error {
		if len(since(before, p.clients(t))) == 0 {
			return fmt.Errorf("the daemon has no new connection")
		}
		return nil
	})
	time.Sleep(100 * time.Millisecond) // for the request, which is sent right after the connect
	const rounds = 90
	for i := range rounds {
		for _, r := range w.remotes {
			to := r.Addr4
			if i%4 == 3 {
				to = r.Addr6
			}
			bulk(t, w.client, load.BulkSpec{To: netip.AddrPortFrom(to, port).String(), Duration: 150 * time.Millisecond, Abort: i%20 == 7})
		}
		if i%10 == 0 {
			bulk(t, w.client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 100 * time.Millisecond, Limit: 100_000})
		}
	}
	time.Sleep(2 * time.Second) // for the samples of the last connections
	must(t, rec.Process.Signal(unix.SIGINT))
	if err := rec.Wait(); err != nil {
		t.Fatalf("tcpilot record: %v: %s", err, &log)
	}
	checkRecording(t, file, rounds*len(w.remotes))
}

// checkRecording fails the test if a recording has fewer samples than connections.
func checkRecording(t *testing.T, file string, connections int) {
	t.Helper()
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	must(t, os.Chmod(file, 0o644)) // it will be committed
	r, err := record.NewReader(f)
	must(t, err)
	n := 0
	for range r.All() {
		n++
	}
	must(t, r.Err())
	if n < connections {
		t.Errorf("%d samples of %d connections", n, connections)
	}
	t.Logf("%d samples", n)
}
