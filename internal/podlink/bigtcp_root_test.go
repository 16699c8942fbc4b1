package podlink

import (
	"io"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/bigtcp"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// pathSizes sets the sizes of packets on the whole way between pods a and c, as
// the daemon does it.
func (r *rig) pathSizes(size uint32) {
	r.t.Helper()
	set := func(ns *testenv.NS, device string, mtu uint32) {
		r.t.Helper()
		ns.Do(r.t, func() {
			d, err := rtnetlink.LinkByName(device)
			if err == nil {
				err = bigtcp.Set(d.Index, bigtcp.Values{Sizes: rtnetlink.Sizes{GSO: size, GRO: size, GSO4: size, GRO4: size}, MTU6: mtu})
			}
			if err != nil {
				r.t.Fatal(err)
			}
		})
	}
	mtu := uint32(1500)
	if size > 65536 {
		mtu -= 8
	}
	for _, p := range []*testenv.Pod{r.a, r.c} {
		set(p.NS, "eth0", mtu)
	}
	set(r.node.NS, r.a.Host, 0)
	set(r.far.NS, r.c.Host, 0)
	set(r.node.NS, "wire", 0)
	set(r.far.NS, "wire", 0)
}

// Packets above 64 KB are routed as all others are, in both directions, and counted in the meter of their pod.
func TestRootBigPackets(t *testing.T) {
	r := newRig(t)
	if err := bigtcp.Try(); err != nil {
		testenv.Missing(t, err.Error())
	}
	r.open()
	w := r.wanted()
	w.Pods[0].Big = true
	r.set(w)
	forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
		for _, size := range []uint32{65536, bigtcp.Size} {
			r.pathSizes(size)
			before, big := r.links.Meters(r.a.HostIndex), size > 65536
			var sent, received uint64
			grown := r.grown(func() {
				for range 30 { // how much is sent at once depends on the window, and so on the machine
					exchange(t, r.a.NS, r.c.NS, address(r.c), 4<<20)
					exchange(t, r.c.NS, r.a.NS, address(r.a), 4<<20) // what is sent back may be sent in smaller pieces
					now := r.links.Meters(r.a.HostIndex)
					sent, received = now.Egress.Big-before.Egress.Big, now.Ingress.Big-before.Ingress.Big
					if !big || sent > 0 && received > 0 {
						break
					}
				}
			})
			if (sent > 0) != big || (received > 0) != big {
				t.Errorf("at most %d bytes: %d packets above 64 KB sent, %d received", size, sent, received)
			}
			for name := range grown {
				if name != "pod-to-wire" && name != "wire-to-pod" {
					t.Errorf("at most %d bytes: %v", size, grown)
				}
			}
		}
		if m := r.links.Meters(r.b.HostIndex); m != (Meters{}) {
			t.Errorf("of a pod without: %+v", m)
		}
	})
	w.Pods[0].Big = false
	r.set(w)
	if m := r.links.Meters(r.a.HostIndex); m != (Meters{}) {
		t.Errorf("it is counted still: %+v", m)
	}
	if m := r.links.TotalMeters(); m.Egress.Big == 0 || m.Ingress.Big == 0 {
		t.Errorf("the sum forgot the pod: %+v", m)
	}
}

// bigTurns is how many requests of so many bytes, with answers of as many, one connection has in a second, and the 99th
// percentile of their times.
func bigTurns(t *testing.T, from, to *testenv.NS, address netip.Addr, bytes int) (rate float64, p99 time.Duration) {
	t.Helper()
	l := to.Listen(t, "tcp", netip.AddrPortFrom(address, 0).String())
	defer l.Close()
	c := from.Dial(t, "tcp", l.Addr().String())
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	client, server := blocking(t, c), blocking(t, s)
	defer client.Close()
	defer server.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		onCPU(1)
		for b := make([]byte, bytes); ; {
			if _, err := io.ReadFull(server, b); err != nil {
				return
			}
			_, _ = server.Write(b)
		}
	}()
	result := make(chan []time.Duration)
	begun := time.Now()
	go func() {
		onCPU(0)
		var took []time.Duration
		for b := make([]byte, bytes); time.Since(begun) < time.Second; {
			at := time.Now()
			_, _ = client.Write(b)
			_, _ = io.ReadFull(client, b)
			took = append(took, time.Since(at))
		}
		result <- took
		runtime.Goexit()
	}()
	took := <-result
	rate = float64(len(took)) / time.Since(begun).Seconds()
	_ = unix.Shutdown(int(client.Fd()), unix.SHUT_RDWR)
	<-ended
	slices.Sort(took)
	return rate, took[len(took)*99/100]
}

// TestMeasureBigTCP compares requests of 80 KB with answers of 80 KB between pods of two nodes, with packets of at most
// 192 KB and of at most 64 KB, and counts the packets above 64 KB.
func TestMeasureBigTCP(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		r := newRig(t)
		r.open()
		far := r.openFar()
		for _, way := range []string{"routed", "stack"} {
			w := r.wanted()
			farWanted := r.farWanted()
			w.Pods[0].Big = true
			if way == "stack" {
				w.Pods[0].Route, farWanted = false, &Wanted{}
			}
			r.set(w)
			r.far.Do(t, func() {
				if _, err := far.Set(farWanted); err != nil {
					t.Fatal(err)
				}
			})
			for _, family := range []struct {
				name    string
				address netip.Addr
			}{{"IPv4", r.c.V4}, {"IPv6", r.c.V6}} {
				rates, tails, streams, costs := map[uint32][]float64{}, map[uint32][]float64{}, map[uint32][]float64{}, map[uint32][]float64{}
				var big uint64
				for range 5 {
					for _, size := range []uint32{65536, bigtcp.Size} {
						r.pathSizes(size)
						before := r.links.Meters(r.a.HostIndex)
						rate, p99 := bigTurns(t, r.a.NS, r.c.NS, family.address, 80<<10)
						after := r.links.Meters(r.a.HostIndex)
						rates[size], tails[size] = append(rates[size], rate), append(tails[size], float64(p99.Microseconds()))
						const bytes = 1 << 30
						spent, begun := busyTime(t), time.Now()
						push(t, r.a.NS, r.c.NS, family.address, bytes)
						x, y := bytes/time.Since(begun).Seconds(), float64(busyTime(t)-spent)/bytes
						streams[size], costs[size] = append(streams[size], x), append(costs[size], y)
						if now := after.Egress.Big - before.Egress.Big + after.Ingress.Big - before.Ingress.Big; size == bigtcp.Size {
							big += now
						} else if now != 0 {
							t.Errorf("%d packets above 64 KB without BIG TCP", now)
						}
					}
				}
				name := way + ", " + family.name + ": "
				small, large := uint32(65536), uint32(bigtcp.Size)
				t.Logf("%s64 KB %v turns/s, p99 %v us; 192 KB %v turns/s, p99 %v us; %d packets above 64 KB", name, rates[small], tails[small], rates[large], tails[large], big)
				testenv.AtLeast(m, name+"80 KB turns, 192 KB / 64 KB", median(rates[large])/median(rates[small]), 1)
				testenv.AtMost(m, name+"p99 of a turn, 192 KB / 64 KB", median(tails[large])/median(tails[small]), 1)
				testenv.AtLeast(m, name+"stream, 192 KB / 64 KB", median(streams[large])/median(streams[small]), 1)
				testenv.AtMost(m, name+"CPU per byte, 192 KB / 64 KB", median(costs[large])/median(costs[small]), 1)
				testenv.AtLeast(m, name+"packets above 64 KB", big, 1)
			}
		}
	})
}
