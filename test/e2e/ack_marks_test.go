package e2e

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// An uplink of 5 Mbit/s with two queues of 200 ms: what is not in class 1:1 waits until that is empty.
type uplink struct {
	name    string
	rule    string
	router  bool // its queues are the gateway's; else the host's own
	uploads int
}

// A host's HTB takes the class from the priority of a packet (htb_classify): 65537 is 1:1. A router has to
// look for the DSCP. An upload leaves only a few packets in its own host's queue (TCP small queues), so
// there have to be more of them.
var uplinks = []uplink{
	{"the host's queue", "set: {ack_priority: 65537}", false, 16},
	{"a router's queue", "set: {ack_dscp: 46}", true, 4},
}

// world has round trips of 20 ms, and 100 Mbit/s towards the client.
func (u *uplink) world(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, "far")
	must(t, w.remotes[0].way.Set(link.Spec{Delay: 10 * ms}))
	must(t, w.back.Set(link.Spec{Delay: 10 * ms, Rate: 100e6, Queue: link.Queue{Bytes: 500_000}}))
	out := w.star.Access
	if u.router {
		out = w.remotes[0].Near
	}
	for _, line := range []string{
		"qdisc replace dev DEV root handle 1: htb default 2",
		"class add dev DEV parent 1: classid 1:f htb rate 5mbit burst 8k",
		"class add dev DEV parent 1:f classid 1:1 htb rate 2500kbit ceil 5mbit prio 0 burst 8k",
		"class add dev DEV parent 1:f classid 1:2 htb rate 2500kbit ceil 5mbit prio 1 burst 8k",
		"qdisc add dev DEV parent 1:1 handle 11: bfifo limit 125000",
		"qdisc add dev DEV parent 1:2 handle 12: bfifo limit 125000",
		"filter add dev DEV parent 1: protocol ip u32 match ip dsfield 0xb8 0xfc flowid 1:1",
	} {
		_, err := out.Host.Run("tc", strings.Fields(strings.ReplaceAll(line, "DEV", out.Device))...)
		must(t, err)
	}
	return w
}

const (
	// downloadFor is long enough for two samples of the connection on a busy machine (walkBudget in
	// internal/daemon): it is marked then. The end of it counts.
	downloadFor   = 36 * time.Second
	downloadShown = 10 * time.Second
)

// download is how one went in downloadShown before its end.
type download struct {
	goodput float64         // bit/s
	trips   []time.Duration // the sender's smoothed round-trip times
}

// serveDownload lets a remote send data for downloadFor to one client, and returns its address and how
// that went.
func (r *remote) serveDownload(t *testing.T) (address string, done <-chan download) {
	t.Helper()
	var l net.Listener
	must(t, r.Host.Do(func() (err error) {
		l, err = net.Listen("tcp4", r.Addr4.String()+":0")
		return err
	}))
	out := make(chan download, 1)
	go func() {
		defer l.Close()
		c, err := l.Accept()
		if err != nil {
			out <- download{}
			return
		}
		defer c.Close()
		out <- send(c.(*net.TCPConn))
	}()
	return l.Addr().String(), out
}

func send(c *net.TCPConn) (d download) {
	raw, err := c.SyscallConn()
	if _, e := io.ReadFull(c, make([]byte, asked)); e != nil || err != nil {
		return d
	}
	chunk := make([]byte, 32<<10)
	for begun := time.Now(); time.Since(begun) < downloadFor; {
		if _, err := c.Write(chunk); err != nil {
			return d
		}
		if time.Since(begun) < downloadFor-downloadShown {
			continue
		}
		d.goodput += float64(len(chunk)) * 8 / downloadShown.Seconds()
		raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
				d.trips = append(d.trips, time.Duration(info.Rtt)*time.Microsecond)
			}
		})
	}
	return d
}

// besideUploads is a download of a client beside its own uploads, and the sum of these in bit/s.
func (u *uplink) besideUploads(t *testing.T, w *world, client *load.Agent) (d download, up float64) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for range u.uploads {
		all.Go(func() {
			got := bulk(t, client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: downloadFor + time.Second})
			mu.Lock()
			defer mu.Unlock()
			up += got.Goodput
		})
	}
	time.Sleep(time.Second) // until the queue is full
	address, done := w.remotes[0].serveDownload(t)
	// It ends before the answer does.
	_, err := client.RPC(t.Context(), load.RPCSpec{To: address, Account: 1, Request: asked, Reply: 1 << 30, Count: 1, Duration: 2 * downloadFor})
	must(t, err)
	if d = <-done; len(d.trips) == 0 {
		t.Fatal("nothing was sent")
	}
	all.Wait()
	return d, up
}

// TestMeasureACKMarks measures the documented claim: the ACKs of a download beside uploads, over a slow uplink,
// come back at least 100 ms earlier if they do not wait for the uploads' packets.
func TestMeasureACKMarks(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		for _, u := range uplinks {
			w := u.world(t)
			startTcpilot(t, w, settings{rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, " + u.rule + "}\n"})
			marked, up := u.besideUploads(t, w, w.client)
			usual, usualUp := u.besideUploads(t, w, w.beside)
			a, b := half(marked.trips), half(usual.trips)
			testenv.AtLeast(m, u.name+": round trips of the download, ms shorter", milli(b-a), 100)
			m.Holds(u.name+": round trips, ms: with, and without "+u.rule, "for comparison", true, fmt.Sprintf("%.0f; %.0f", milli(a), milli(b)))
			m.Holds(u.name+": download, Mbit/s", "for comparison", true, fmt.Sprintf("%.1f; %.1f", marked.goodput/1e6, usual.goodput/1e6))
			m.Holds(u.name+": uploads, Mbit/s", "for comparison", true, fmt.Sprintf("%.2f; %.2f", up/1e6, usualUp/1e6))
		}
	})
}
