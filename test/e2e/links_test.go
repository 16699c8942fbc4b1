package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/record"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// recordedLink is a link of which TestRecordLinks records samples. Delay of the way back is
// newWorld's.
type recordedLink struct {
	name string
	spec link.Spec
	// then are rates that the link has one after the other, each for a second.
	then []uint64
	// beside: a connection of another host competes all the time.
	beside bool
	// seconds is the duration of a connection; 0 is one second.
	seconds float64
}

const (
	ms = time.Millisecond
	kB = 1000
)

// recordedLinks are links with a policer, and everything else that loses packets.
var recordedLinks = []recordedLink{
	{name: "policer 50 Mbit/s", spec: link.Spec{Delay: 15 * ms, Rate: 1e9, Policer: link.Policer{Rate: 50e6, Burst: 100 * kB}}},
	{name: "policer 50 Mbit/s, short connections", spec: link.Spec{Delay: 15 * ms, Rate: 1e9, Policer: link.Policer{Rate: 50e6, Burst: 100 * kB}}, seconds: 0.4},
	{name: "policer 20 Mbit/s", spec: link.Spec{Delay: 15 * ms, Rate: 100e6, Policer: link.Policer{Rate: 20e6, Burst: 100 * kB}}},
	{name: "policer 10 Mbit/s, large bucket", spec: link.Spec{Delay: 35 * ms, Rate: 100e6, Policer: link.Policer{Rate: 10e6, Burst: 1000 * kB}}, seconds: 2},
	{name: "policer 20 Mbit/s, 0.1 % loss", spec: link.Spec{Delay: 15 * ms, Rate: 200e6, Loss: 0.001, Policer: link.Policer{Rate: 20e6, Burst: 100 * kB}}},
	{name: "loss 0.1 %", spec: link.Spec{Delay: 5 * ms, Rate: 100e6, Loss: 0.001}},
	{name: "loss 1 %", spec: link.Spec{Delay: 15 * ms, Rate: 100e6, Loss: 0.01}},
	{name: "loss 5 %", spec: link.Spec{Delay: 5 * ms, Rate: 100e6, Loss: 0.05}},
	{name: "loss 1 %, slow link", spec: link.Spec{Delay: 15 * ms, Rate: 10e6, Loss: 0.01, Queue: link.Queue{Bytes: 100 * kB}}},
	{name: "queue of 10 packets", spec: link.Spec{Delay: 15 * ms, Rate: 50e6, Queue: link.Queue{Packets: 10}}},
	{name: "queue of a tenth of the BDP", spec: link.Spec{Delay: 35 * ms, Rate: 50e6, Queue: link.Queue{Bytes: 25 * kB}}},
	{name: "queue of a BDP", spec: link.Spec{Delay: 15 * ms, Rate: 50e6, Queue: link.Queue{Bytes: 125 * kB}}},
	{name: "bufferbloat", spec: link.Spec{Delay: 15 * ms, Rate: 20e6, Queue: link.Queue{Packets: 1000}}},
	{name: "wifi-like", spec: link.Spec{Delay: 8 * ms, Jitter: 4 * ms, Reorder: 0.001, Rate: 50e6, Queue: link.Queue{Packets: 256},
		Bursts: link.Bursts{ToBad: 0.002, ToGood: 0.2, LossBad: 0.5}}, then: []uint64{50e6, 30e6, 15e6, 40e6, 50e6, 25e6}},
	{name: "cellular-like", spec: link.Spec{Delay: 30 * ms, Jitter: 10 * ms, Rate: 20e6, Queue: link.Queue{Packets: 1000}},
		then: []uint64{20e6, 30e6, 8e6, 3e6, 15e6, 30e6}},
	{name: "satellite", spec: link.Spec{Delay: 590 * ms, Rate: 20e6, Loss: 0.01, Queue: link.Queue{Bytes: 1500 * kB}}, seconds: 2},
	{name: "coexist", spec: link.Spec{Delay: 15 * ms, Rate: 50e6, Queue: link.Queue{Bytes: 125 * kB}}, beside: true},
	{name: "coexist, queue of 10 packets", spec: link.Spec{Delay: 15 * ms, Rate: 50e6, Queue: link.Queue{Packets: 10}}, beside: true},
	{name: "marks", spec: link.Spec{Delay: 5 * ms, Rate: 50e6, Queue: link.Queue{Bytes: 128 * kB}, ECN: 30 * kB}},
	{name: "shift", spec: link.Spec{Delay: 5 * ms, Rate: 100e6, Loss: 0.02}, then: []uint64{100e6, 50e6}},
}

// TestRecordLinks writes the samples with which package estimate tests what it finds of paths.
// TCPILOT_LINK_SAMPLES names the file. Each link has connections of cubic, reno and bbr, one at a
// time, short ones between them, and then three at a time.
func TestRecordLinks(t *testing.T) {
	file := os.Getenv("TCPILOT_LINK_SAMPLES")
	if file == "" {
		t.Skip("writes recorded samples: make samples")
	}
	var names []string
	for i := range recordedLinks {
		names = append(names, fmt.Sprint("link", i))
	}
	w := newWorld(t, names...)
	rules := "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: [cubic]}, adapt: [max_pacing_rate], rollout: 0.1%}\n"
	p := startTcpilot(t, w, settings{rules: rules})
	raw := filepath.Join(t.TempDir(), "raw.tcpilot")
	var log bytes.Buffer
	rec := exec.Command(p.bin, "record", raw, "--force", "--socket", p.socket)
	rec.Stdout, rec.Stderr = &log, &log
	must(t, rec.Start())
	time.Sleep(2 * time.Second)
	for i := range recordedLinks {
		l := &recordedLinks[i]
		must(t, w.remotes[i].way.Set(l.spec))
		l.run(t, w, w.remotes[i])
	}
	time.Sleep(2 * time.Second)
	must(t, rec.Process.Signal(unix.SIGINT))
	if err := rec.Wait(); err != nil {
		t.Fatalf("tcpilot record: %v: %s", err, &log)
	}
	writeLinks(t, w, raw, file)
}

func (l *recordedLink) run(t *testing.T, w *world, r *remote) {
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
				if l.then != nil {
					reshape(t, r.way, func(s *link.Spec) { s.Rate = l.then[i%len(l.then)] })
				}
			}
		}
	})
	long := time.Second
	if l.seconds != 0 {
		long = time.Duration(l.seconds * float64(time.Second))
	}
	one := func(cc string, d time.Duration) {
		if cc == "cubic" {
			cc = "" // a connection has an outcome, and the path a policy, only if the application chooses nothing
		}
		bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: d, CC: cc})
	}
	if l.beside {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					bulk(t, w.beside, load.BulkSpec{To: at(r.Addr4), Duration: time.Second, CC: "cubic"})
				}
			}
		})
	}
	for range 6 {
		one("cubic", long)
		one("cubic", 30*ms)
	}
	for range 3 {
		one("reno", long)
		one("bbr", long)
		one("cubic", 150*ms)
	}
	for range 3 {
		var together sync.WaitGroup
		for _, cc := range []string{"cubic", "cubic", "reno"} {
			together.Go(func() { one(cc, long) })
		}
		together.Wait()
	}
	close(stop)
	running.Wait()
}

// linkSample is a sample in the file.
type linkSample struct {
	Link  string    `json:"link"`
	Kind  tcp.Kind  `json:"kind"`
	Flags tcp.Flags `json:"flags"`
	At    int64     `json:"at_ns"`
	CC    tcp.CC    `json:"cc"`
	tcp.Sample
}

func writeLinks(t *testing.T, w *world, raw, file string) {
	t.Helper()
	names := map[netip.Addr]string{}
	for i, r := range w.remotes {
		names[r.Addr4] = recordedLinks[i].name
	}
	in, err := os.Open(raw)
	must(t, err)
	defer in.Close()
	rd, err := record.NewReader(in)
	must(t, err)
	var lines bytes.Buffer
	begin := int64(0)
	for s := range rd.All() {
		if begin == 0 {
			begin = s.At - int64(s.Duration)
		}
		out := linkSample{Link: names[s.Remote.Addr()], Kind: s.Kind, Flags: s.Flags, At: s.At - begin, CC: s.CC, Sample: *s}
		// What says nothing of the link is left out.
		out.Cookie, out.NetNS, out.Cgroup, out.StandsFor, out.Connect = 0, 0, 0, 0, 0
		out.BytesReceived, out.BytesRetrans, out.SegsOut, out.SegsIn = 0, 0, 0, 0
		text, err := json.Marshal(out)
		must(t, err)
		lines.Write(append(text, '\n'))
	}
	must(t, rd.Err())
	must(t, os.WriteFile(file, lines.Bytes(), 0o644))
}
