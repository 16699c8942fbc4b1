package podlink

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// datagrams are the ends of an exchange of datagrams.
func datagrams(t *testing.T, from, to *testenv.Pod, address netip.Addr) (in, out *net.UDPConn) {
	t.Helper()
	var err error
	to.Do(t, func() { in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 0))) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	out = from.Dial(t, "udp", in.LocalAddr().String()).(*net.UDPConn)
	t.Cleanup(func() { out.Close() })
	return in, out
}

// flooded is what became of a flood. A machine that stalls for more than a limit's burst uses less of the limit.
type flooded struct {
	sent    float64       // bytes on the wire
	arrived float64       // of them
	took    time.Duration // to send them
	stalled time.Duration // of that, gaps beyond the burst of 50 ms (MOST_AHEAD in bpf/pod/bandwidth.bpf.h)
}

// least is how many bytes a limit of so many a second lets through: all that it allowed, but no more than was sent by a machine
// that has hardly any time for this test.
func (f *flooded) least(rate float64) float64 { return min(rate*(f.took-f.stalled).Seconds(), f.sent) }

// exceeds reports whether it was clearly faster than a rate in bytes per second, so that some must have been dropped.
func (f *flooded) exceeds(rate float64) bool { return f.sent > 2*rate*f.took.Seconds() }

// flood sends datagrams at 80 Mbit/s.
func flood(t *testing.T, from, to *testenv.Pod, address netip.Addr, option func(syscall.Conn), d time.Duration) (f flooded) {
	t.Helper()
	in, out := datagrams(t, from, to, address)
	setOption(t, in, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	if option != nil {
		option(out)
	}
	headers := 14 + 20 + 8.
	if address.Is6() {
		headers += 20
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for over := false; ; {
			_ = in.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			n, err := in.Read(buf)
			switch {
			case err == nil:
				f.arrived += float64(n) + headers
			case over:
				return
			}
			select {
			case <-ended:
				over = true
			default:
			}
		}
	}()
	const rate, burst = 10e6, 50 * time.Millisecond // rate: bytes per second of payload
	data := make([]byte, 1000)
	begin := time.Now()
	for n := 0.; f.took < d; {
		if n*float64(len(data)) < rate*f.took.Seconds() {
			_, _ = out.Write(data) // what is dropped at once is an error
			n++
			f.sent = n * (float64(len(data)) + headers)
		} else {
			time.Sleep(time.Millisecond)
		}
		now := time.Since(begin)
		f.stalled += max(0, now-f.took-burst)
		f.took = now
	}
	close(ended)
	<-done
	return f
}

// limitTo is what is wanted with limits for the pods a and b, and nothing else.
func (r *rig) limitTo(a, b pod.Bandwidth, route bool) *Wanted {
	r.t.Helper()
	return &Wanted{Pods: []Pod{{Pod: record(r.t, r.a), Route: route, Limits: a}, {Pod: record(r.t, r.b), Route: route, Limits: b}}}
}

// At most the limit passes over any time, plus a burst of 50 ms of it at the start, whether packets are routed or
// take the stack. The meter counts what arrives, with the headers of each segment.
func TestRootBandwidth(t *testing.T) {
	const rate = 20e6 / 8 // bytes per second
	limit := pod.Bandwidth{Egress: 20e6}
	r := newRig(t)
	r.open()
	for _, c := range []struct {
		name    string
		a, b    pod.Bandwidth
		to      *testenv.Pod
		route   bool
		segment int
	}{
		{"egress", limit, pod.Bandwidth{}, r.b, false, 0},
		{"egress to another node", limit, pod.Bandwidth{}, r.c, false, 0},
		{"egress, routed", limit, pod.Bandwidth{}, r.b, true, 0},
		{"ingress", pod.Bandwidth{}, pod.Bandwidth{Ingress: 20e6}, r.b, false, 0},
		{"ingress, routed", pod.Bandwidth{}, pod.Bandwidth{Ingress: 20e6}, r.b, true, 0},
		{"segmented later", limit, pod.Bandwidth{}, r.b, false, 100},
	} {
		for family, address := range map[string]netip.Addr{"IPv4": c.to.V4, "IPv6": c.to.V6} {
			r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{}, c.route))
			r.set(r.limitTo(c.a, c.b, c.route)) // new meters
			var option func(syscall.Conn)
			if c.segment > 0 {
				option = func(s syscall.Conn) { setOption(t, s, unix.SOL_UDP, unix.UDP_SEGMENT, c.segment) }
			}
			f := flood(t, r.a, c.to, address, option, time.Second)
			m := r.links.Meters(r.a.HostIndex).Egress
			if c.b.Ingress != 0 {
				m = r.links.Meters(r.b.HostIndex).Ingress
			}
			least, most := 0.9*f.least(rate), rate*(f.took+60*time.Millisecond).Seconds()+3000
			t.Logf("%s, %s: %+v, %.3f of the limit; %+v", c.name, family, f, f.arrived/rate/f.took.Seconds(), m)
			if f.arrived > most || f.arrived < least || m.Dropped == 0 && f.exceeds(rate) {
				t.Errorf("%s, %s: %+v, want %.0f to %.0f; %+v", c.name, family, f, least, most, m)
			}
			if float64(m.Passed) < f.arrived || float64(m.Passed) > most+60e-3*rate { // some may be lost behind the meter
				t.Errorf("%s, %s: the meter counts %d bytes, %.0f arrived", c.name, family, m.Passed, f.arrived)
			}
		}
	}
}

// Packets of a higher band do not suffer from those of a lower one that are sent too fast.
func TestRootBandwidthBands(t *testing.T) {
	r := newRig(t)
	r.open()
	const low, normal, high = 1 << 2, 0, 46 << 2 // LE, best effort, EF; as the TOS byte
	for _, c := range []struct {
		name        string
		flood, kept int
	}{
		{"normal before low", low, normal},
		{"high before normal", normal, high},
	} {
		for family, address := range map[string]netip.Addr{"IPv4": r.b.V4, "IPv6": r.b.V6} {
			r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{}, false))
			r.set(r.limitTo(pod.Bandwidth{Egress: 20e6}, pod.Bandwidth{}, false)) // new meters
			class := func(tos int) func(syscall.Conn) {
				return func(s syscall.Conn) {
					if address.Is6() {
						setOption(t, s, unix.SOL_IPV6, unix.IPV6_TCLASS, tos)
					} else {
						setOption(t, s, unix.SOL_IP, unix.IP_TOS, tos)
					}
				}
			}
			in, out := datagrams(t, r.a, r.b, address)
			if err := in.SetReadBuffer(1 << 20); err != nil {
				t.Fatal(err)
			}
			class(c.kept)(out)
			ended, sent := make(chan struct{}), make(chan int)
			go func() { // 1 Mbit/s
				n := 0
				for {
					select {
					case <-ended:
						sent <- n
						return
					case <-time.After(5 * time.Millisecond):
						_, _ = out.Write(make([]byte, 600))
						n++
					}
				}
			}()
			f := flood(t, r.a, r.b, address, class(c.flood), 500*time.Millisecond)
			close(ended)
			n, arrived := <-sent, 0
			_ = in.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			for b := make([]byte, 600); ; arrived++ {
				if _, err := in.Read(b); err != nil {
					break
				}
			}
			m := r.links.Meters(r.a.HostIndex).Egress
			t.Logf("%s, %s: %d of %d arrived; %+v", c.name, family, arrived, n, m)
			if n < 20 || arrived < n || m.Dropped < 100 && f.exceeds(20e6/8) {
				t.Errorf("%s, %s: %d of %d arrived; %+v", c.name, family, arrived, n, m)
			}
		}
	}
}

// A pod that receives more than its limit is still found by its neighbours.
func TestRootBandwidthKeepsNeighbours(t *testing.T) {
	r := newRig(t)
	r.open()
	const limit = 1e6 / 8
	for family, address := range map[string]netip.Addr{"-4": r.b.V4, "-6": r.b.V6} {
		r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{}, false))
		r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{Ingress: 8 * limit}, false)) // new meters
		flushed := make(chan struct{})
		go func() {
			defer close(flushed)
			time.Sleep(200 * time.Millisecond) // the clock is as far ahead as the limit allows
			r.node.Run(t, "ip", family, "neigh", "flush", "dev", r.b.Host)
		}()
		f := flood(t, r.a, r.b, address, nil, 800*time.Millisecond)
		<-flushed
		t.Logf("%s: %.0f bytes arrived in %v, at least %.0f passed", family, f.arrived, f.took, f.least(limit))
		if f.arrived < 0.8*f.least(limit) {
			t.Errorf("%s: %.0f bytes arrived in %v, %.0f should have passed", family, f.arrived, f.took, f.least(limit))
		}
	}
}

// A packet that can be marked is marked before others are dropped.
func TestRootBandwidthMarks(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.limitTo(pod.Bandwidth{Egress: 8e6}, pod.Bandwidth{}, false))
	const burst = 40 // of 1000 bytes: 1 ms each
	send := func(tos int) {
		_, out := datagrams(t, r.a, r.b, r.b.V4)
		setOption(t, out, unix.SOL_IP, unix.IP_TOS, tos)
		for range burst {
			if _, err := out.Write(make([]byte, 1000-42)); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(0)
	if m := r.links.Meters(r.a.HostIndex).Egress; m.Marked != 0 || m.Dropped != 0 || m.Passed < burst*1000 {
		t.Errorf("not ECT: %+v", m)
	}
	time.Sleep(60 * time.Millisecond) // the clock is in the past again
	send(2)                           // ECT(0)
	if m := r.links.Meters(r.a.HostIndex).Egress; m.Marked < 20 || m.Marked > burst-5 || m.Dropped != 0 {
		t.Errorf("ECT: %+v, want those marked that are more than 5 ms ahead", m)
	}
}

// Packets that are marked on the way to a pod arrive, whether they are routed or take the stack: a mark changes the
// checksum of IPv4.
func TestRootBandwidthMarksArrive(t *testing.T) {
	r := newRig(t)
	r.open()
	for _, route := range []bool{false, true} {
		for _, address := range []netip.Addr{r.b.V4, r.b.V6} {
			r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{}, route))
			r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{Ingress: 8e6}, route)) // a new meter
			in, out := datagrams(t, r.a, r.b, address)
			level, option := unix.SOL_IP, unix.IP_TOS
			if address.Is6() {
				level, option = unix.SOL_IPV6, unix.IPV6_TCLASS
			}
			setOption(t, out, level, option, 2) // ECT(0)
			const burst = 40                    // of 1000 bytes, about: 1 ms each
			for range burst {
				if _, err := out.Write(make([]byte, 950)); err != nil {
					t.Fatal(err)
				}
			}
			arrived := 0
			for buf := make([]byte, 1000); arrived < burst; arrived++ {
				if err := in.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
					t.Fatal(err)
				}
				if _, err := in.Read(buf); err != nil {
					break
				}
			}
			if m := r.links.Meters(r.b.HostIndex).Ingress; arrived != burst || m.Marked < 20 || m.Dropped != 0 {
				t.Errorf("routed %v, to %s: %d of %d arrived; %+v", route, address, arrived, burst, m)
			}
		}
	}
}

// A limit changes without a burst and without losing counts, also in the next process. Totals include pods that are
// gone.
func TestRootBandwidthChanges(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.limitTo(pod.Bandwidth{Egress: 80e6}, pod.Bandwidth{}, false))
	flood(t, r.a, r.b, r.b.V4, nil, 300*time.Millisecond)
	before := r.links.Meters(r.a.HostIndex).Egress.Passed
	r.set(r.limitTo(pod.Bandwidth{Egress: 8e6}, pod.Bandwidth{}, false))
	f := flood(t, r.a, r.b, r.b.V4, nil, 500*time.Millisecond)
	if most := 1e6*(f.took+60*time.Millisecond).Seconds() + 3000; f.arrived > most {
		t.Errorf("%+v after a change to 8 Mbit/s, want at most %.0f", f, most)
	}
	if err := r.links.Close(); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.set(r.limitTo(pod.Bandwidth{Egress: 8e6}, pod.Bandwidth{}, false))
	passed := r.links.Meters(r.a.HostIndex).Egress.Passed
	if passed < before+uint64(f.arrived) {
		t.Errorf("%d bytes passed after a restart, %d and %.0f before", passed, before, f.arrived)
	}
	r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{Ingress: 1e9}, false))
	if m, sum := r.links.Meters(r.a.HostIndex), r.links.TotalMeters(); m != (Meters{}) || sum.Egress.Passed < passed {
		t.Errorf("without a limit: %+v; in total %+v, want at least %d", m, sum, passed)
	}
}

// handle has a program handle packets for pod b, or from it, back to back, and returns how many passed and how long that took.
func (r *rig) handle(d pod.Bandwidth, bytes, packets int) (passed float64, took time.Duration) {
	r.t.Helper()
	program := r.links.programs.podIn.prog
	meter := func() Meter { return r.links.Meters(r.b.HostIndex).Ingress }
	if d.Egress != 0 {
		program = r.links.programs.podOut.prog
		meter = func() Meter { return r.links.Meters(r.b.HostIndex).Egress }
	}
	before, begin := meter().Passed, time.Now()
	err := netns.Do(r.node.FD(), func() error {
		_, err := program.Run(&ebpf.RunOptions{Data: make([]byte, bytes), Context: packetOf(r.b.HostIndex), Repeat: uint32(packets)})
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return float64(meter().Passed-before) / float64(bytes), time.Since(begin)
}

// packetOf is the context of a packet on a device: struct __sk_buff.
func packetOf(index int) []byte {
	ctx := make([]byte, 192)
	binary.NativeEndian.PutUint32(ctx[10*4:], uint32(index))
	return ctx
}

// After a drop, a pod that paused catches up for at most 200 ms of the pause. Over all time since it was idle, it never
// exceeds its limit by more than 50 ms of it.
func TestRootBandwidthCatchesUp(t *testing.T) {
	r := newRig(t)
	r.open()
	const bytes, ms = 1500, 12e6 // a packet takes 1 ms at the limit
	for name, limit := range map[string]pod.Bandwidth{"received": {Ingress: ms}, "sent": {Egress: ms}} {
		r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{}, false))
		r.set(r.limitTo(pod.Bandwidth{}, limit, false)) // a new meter
		var begin, last time.Time                       // last: when the round before began
		all := 0.
		for _, c := range []struct {
			what    string
			pause   time.Duration // before, in which nothing is sent
			packets int
			want    float64 // that pass if they take no time
		}{
			{"idle before", 0, 40, 40},
			{"nothing was dropped", 400 * time.Millisecond, 100, 50},
			{"100 were, 400 ms ago", 400 * time.Millisecond, 400, 250},
			{"directly after that", 0, 100, 0},
			{"long ago", 1300 * time.Millisecond, 100, 50},
		} {
			ended := time.Now()
			time.Sleep(c.pause)
			if c.want == 250 && time.Since(ended) > 900*time.Millisecond {
				t.Logf("%s: paused for %v", name, time.Since(ended)) // the machine stalled: that is long ago
				break
			}
			if c.want == 50 {
				begin, all = time.Now(), 0 // the clock is in the past, and that does not count
			}
			start := time.Now()
			passed, took := r.handle(limit, bytes, c.packets)
			if c.want == 0 { // the clock was full at the end of the round before
				took = time.Since(last)
			}
			last = start
			t.Logf("%s, %s: %.0f of %d passed in %v", name, c.what, passed, c.packets, took)
			if most := c.want + 1 + took.Seconds()*1e3; passed < c.want-1 || passed > most {
				t.Errorf("%s, %s: %.0f of %d passed in %v, want %.0f", name, c.what, passed, c.packets, took, c.want)
			}
			all += passed
			if most := 51 + time.Since(begin).Seconds()*1e3; c.packets >= 100 && all > most {
				t.Errorf("%s, %s: %.0f passed since %v, want at most %.0f", name, c.what, all, begin, most)
			}
		}
	}
}

// A limit that is raised holds at once: what passed under the lower one is not paid back at its rate.
func TestRootBandwidthRaised(t *testing.T) {
	r := newRig(t)
	r.open()
	for name, of := range map[string]func(bits uint64) pod.Bandwidth{
		"received": func(bits uint64) pod.Bandwidth { return pod.Bandwidth{Ingress: bits} },
		"sent":     func(bits uint64) pod.Bandwidth { return pod.Bandwidth{Egress: bits} },
	} {
		low, high := of(1e3), of(12e6)
		r.set(r.limitTo(pod.Bandwidth{}, low, false))
		if passed, _ := r.handle(low, 1500, 5); passed != 1 { // it takes 12 s
			t.Fatalf("%s: %.0f packets passed at 1 kbit/s, want 1", name, passed)
		}
		r.set(r.limitTo(pod.Bandwidth{}, high, false))
		begin := time.Now()
		passed, _ := r.handle(high, 1500, 500) // 1 ms each
		if most := 51 + time.Since(begin).Seconds()*1e3; passed < 49 || passed > most {
			t.Errorf("%s: %.0f packets passed at 12 Mbit/s, want 49 to %.0f", name, passed, most)
		}
		// A limit that changes often is no greater.
		const changes = 20
		for i := range changes {
			limit := of(12e6 + uint64(i%2)*1e5)
			r.set(r.limitTo(pod.Bandwidth{}, limit, false))
			n, _ := r.handle(limit, 1500, 60)
			passed += n
		}
		if most := 51 + changes + time.Since(begin).Seconds()*1.01e3; passed > most {
			t.Errorf("%s: %.0f packets passed while the limit was changed %d times, want at most %.0f", name, passed, changes, most)
		}
	}
}

// Of what a pod receives, short packets still pass when longer ones do not. A packet passes only if it ends within the bound, or
// finds the clock less than 25 ms ahead.
func TestRootBandwidthShortPackets(t *testing.T) {
	r := newRig(t)
	r.open()
	for name, c := range map[string]struct {
		limit       pod.Bandwidth
		long, short float64 // how many pass, of 1500 bytes and then of 150
	}{
		"received":   {pod.Bandwidth{Ingress: 6e5}, 2, 10}, // 20 ms each: 40 ms, then 2 ms each until it is 60 ms
		"sent":       {pod.Bandwidth{Egress: 6e5}, 2, 5},   // until it is 50 ms
		"long at it": {pod.Bandwidth{Ingress: 1e5}, 1, 0},  // 120 ms: one passes all the same
	} {
		checked := false
		for i := 0; i < 100 && !checked; i++ {
			r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{}, false))
			r.set(r.limitTo(pod.Bandwidth{}, c.limit, false)) // a new meter
			begin := time.Now()
			long, _ := r.handle(c.limit, 1500, 10)
			short, _ := r.handle(c.limit, 150, 100)
			took := time.Since(begin)
			t.Logf("%s: %.0f, then %.0f short ones passed in %v", name, long, short, took)
			checked = took < 5*time.Millisecond
			more := 1 + took.Seconds()*float64(c.limit.Egress+c.limit.Ingress)/(8*150)
			if checked && (long != c.long || short < c.short || short > c.short+more) {
				t.Errorf("%s: %.0f, then %.0f short ones passed in %v, want %.0f and %.0f", name, long, short, took, c.long, c.short)
			}
		}
		if !checked {
			t.Errorf("%s: no round took less than 5 ms", name)
		}
	}
}

// Whoever sends a pod short packets at more than its limit does not keep longer ones out: these have half of the limit.
func TestRootBandwidthShortFlood(t *testing.T) {
	r := newRig(t)
	r.open()
	const long, short, rate = 1500., 150., 12e6 / 8 // bytes; bytes per second
	limit := pod.Bandwidth{Ingress: 8 * rate}
	r.set(r.limitTo(pod.Bandwidth{}, limit, false))
	var offered, passed [2]float64 // bytes: long ones, short ones
	begin := time.Now()
	for took := 0.; took < 1; took = time.Since(begin).Seconds() {
		for i, c := range []struct{ bytes, share float64 }{{long, 0.8}, {short, 1.5}} {
			if n := int((c.share*rate*took - offered[i]) / c.bytes); n > 0 {
				p, _ := r.handle(limit, int(c.bytes), n)
				offered[i] += float64(n) * c.bytes
				passed[i] += p * c.bytes
			}
		}
		time.Sleep(500 * time.Microsecond)
	}
	took := time.Since(begin).Seconds()
	l, s := passed[0]/rate/took, passed[1]/rate/took
	t.Logf("of the limit: %.2f in long packets, %.2f in short ones", l, s)
	if l < 0.3 || s < 0.3 || l+s < 0.9 || l+s > 1.1 {
		t.Errorf("of the limit: %.2f in long packets, %.2f in short ones, want half of it each", l, s)
	}
}

// If two CPUs handle packets at the same time, the clock moves on by the time of all of them.
func TestRootBandwidthLosesNoTime(t *testing.T) {
	r := newRig(t)
	r.open()
	const packets, bytes, cost = 10000, 1000, 2000 // on each CPU; nanoseconds of a packet at the limit
	r.set(r.limitTo(pod.Bandwidth{Egress: 8 * bytes * 1e9 / cost}, pod.Bandwidth{}, false))
	ctx := packetOf(r.a.HostIndex)
	var begin unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &begin); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			err := netns.Do(r.node.FD(), func() error {
				_, err := r.links.programs.podOut.prog.Run(&ebpf.RunOptions{Data: make([]byte, bytes), Context: ctx, Repeat: packets})
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var raw abiPodMeters
	if err := r.links.meters.m.Lookup(uint32(r.a.HostIndex), &raw); err != nil {
		t.Fatal(err)
	}
	took := time.Duration(int64(raw.Egress.ClockNs) - begin.Nano())
	if least := 2 * packets * cost * time.Nanosecond; raw.Egress.Bytes < 2*packets*bytes || raw.Egress.Dropped != 0 || took < least {
		t.Errorf("%+v: the clock moved on by %v, want at least %v", raw.Egress, took, least)
	}
	t.Logf("%+v: %v", raw.Egress, took)
}
