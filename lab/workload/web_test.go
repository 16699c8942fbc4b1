package workload

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// Each request has a connection of its own, whose account is what the server's
// kernel says, and the first ones are a group apart.
func TestRootWeb(t *testing.T) {
	f := newFleet(t, topology.Chain(2))
	limit(t, f, "hop1", "rate 100mbit burst 20kb limit 10mb") // no loss, and long enough to be seen
	for _, client := range []Client{OwnClient, Curl} {
		t.Run(string(client), func(t *testing.T) {
			families(t, func(t *testing.T, ipv6 bool) {
				r := run(t, f, Spec{Name: "w", Kind: Web, Client: client, Count: 60, First: 20, Concurrency: 5, Size: Size{Fixed: 300_000}, IPv6: ipv6})
				if len(r.Connections) != 60 || len(r.Requests) != 60 {
					t.Fatalf("%d connections and %d requests, want 60 of each", len(r.Connections), len(r.Requests))
				}
				group, controls := map[string]int{}, 0
				for i, c := range r.Connections {
					group[c.Group]++
					if i < 20 != (c.Group == "w/first") {
						t.Errorf("connection %d is of group %s", i, c.Group)
					}
					// The kernel reports all but the congestion control when a socket ends. That is read
					// every 20 ms, which on a busy machine is too seldom for some connections.
					if c.CC != "" {
						controls++
					} else {
						c.CC = "not read"
					}
					if !kernel(c) || c.Bytes != 300_000 || c.Segments < 300_000/65536 || c.From != "sender1" {
						t.Errorf("record %+v", c)
					}
				}
				if controls == 0 {
					t.Error("no connection has a congestion control")
				}
				if group["w/first"] != 20 || group["w/later"] != 40 {
					t.Errorf("groups %v", group)
				}
				for _, q := range r.Requests {
					if c := r.Connections[q.Conn]; q.Group != c.Group || q.Elapsed != c.Elapsed {
						t.Errorf("request %+v on connection %+v", q, c)
					}
				}
				if n := r.Totals["w/later"]; n.Connections != 40 || n.Requests != 40 || n.Bytes != 40*300_000 {
					t.Errorf("totals %+v", r.Totals)
				}
			})
		})
	}
}

// The accounts of sockets count what was sent again: with a policer that drops, the
// retransmits of all connections are as many as the namespace's kernel counts.
func TestRootWebRetransmits(t *testing.T) {
	f := newFleet(t, topology.Chain(1))
	limit(t, f, "hop1", "rate 20mbit burst 5kb limit 15kb")
	sender := f.layout.Senders[0]
	before := retransmits(t, sender)
	r, err := f.Run(t.Context(), []Spec{{Kind: Web, Count: 20, Concurrency: 4, Size: Size{Fixed: 200_000}}})
	if err != nil || r.Errors > 0 || len(r.Connections) != 20 {
		t.Fatalf("%v, %d errors (%s), %d connections", err, r.Errors, r.FirstError, len(r.Connections))
	}
	sum := 0
	for _, c := range r.Connections {
		sum += int(c.Retrans)
	}
	if want := retransmits(t, sender) - before; sum == 0 || sum > want || sum+want/50+3 < want {
		t.Errorf("connections retransmitted %d segments, the host %d", sum, want)
	}
}

// limit gives the sender's device a token bucket.
func limit(t *testing.T, f *Fleet, dev, tbf string) {
	t.Helper()
	if out, err := f.layout.Senders[0].Run("sh", "-c", "tc qdisc add dev "+dev+" root tbf "+tbf); err != nil {
		t.Fatal(err, out)
	}
}

// retransmits is RetransSegs of a host.
func retransmits(t *testing.T, h *topology.Host) (n int) {
	t.Helper()
	out, err := h.Run("cat", "/proc/self/net/snmp")
	if err != nil {
		t.Fatal(err)
	}
	if n, err = testenv.NetCounter(out, "RetransSegs"); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCurlReport(t *testing.T) {
	var r curlReport
	began := load.Now()
	for _, text := range []string{"tcpilot 4711 0.05", "0 0.5 100 200 \ntcpilot 4712 0.1 0.2 50 200 \nnoise\n",
		"tcpilot 0 0 0.3 0 000 Failed to connect\n", "tcpilot 4713 0.1 0.2 7 404 \ntcpilot nonsense\n"} {
		if n, err := r.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	list := r.connections(100)
	if len(list) != 4 {
		t.Fatalf("%d connections: %+v", len(list), list)
	}
	c := list[0] // it began first: it took the longest
	if c.Port != 4711 || c.Connect != 50*time.Millisecond || c.Elapsed != 500*time.Millisecond || !c.Delivered || c.Bytes != 100 {
		t.Errorf("first %+v", c)
	}
	if ended := c.Begin.Add(c.Elapsed); ended < began || ended > load.Now() {
		t.Errorf("it ended at %d, not after %d", ended, began)
	}
	errors := map[uint16]string{}
	for _, c := range list[1:] {
		if c.Delivered {
			t.Errorf("delivered: %+v", c)
		}
		errors[c.Port] = c.Error
	}
	for port, want := range map[uint16]string{4712: "50 bytes, not 100", 0: "Failed to connect", 4713: "status 404"} {
		if !strings.Contains(errors[port], want) {
			t.Errorf("error of port %d is %q, want %q", port, errors[port], want)
		}
	}
}
