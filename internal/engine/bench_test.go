package engine

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// addrOf numbers hosts, eight to a /24, so that there are paths and hosts.
func addrOf(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 11), byte(i >> 3), byte(i&7 + 1)})
}

var three = []tcp.CC{bbr, cubic, reno}

// scored returns n samples over the given number of hosts, perSecond of them.
func (w *world) scored(n, hosts, perSecond int) []tcp.Sample {
	out := make([]tcp.Sample, n)
	g := goods{cubic: 50, bbr: 150, reno: 45}
	for i := range out {
		s := w.sample(addrOf(w.rng.IntN(hosts)))
		s.Class = w.e.rules.states[0].class
		s.Arm = three[max(0, w.rng.IntN(32)-29)] // a learned path seldom tries others
		w.transfer(s, g)
		s.At = w.now + int64(i)*second/int64(perSecond)
		out[i] = *s
	}
	return out
}

func BenchmarkObserve(b *testing.B) {
	for _, hosts := range []int{1, 8, 10_000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			w := newWorld(b, nil)
			samples := w.scored(1<<15, hosts, 5000)
			for i := range samples {
				w.e.Observe(&samples[i])
			}
			w.e.Settle(w.now)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.e.Observe(&samples[i%len(samples)])
			}
		})
	}
}

// BenchmarkMillion is one million samples through the engine, with decisions every
// 10 ms of their own time, as daemon.Replay makes them.
func BenchmarkMillion(b *testing.B) {
	const million = 1_000_000
	for _, hosts := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			samples := newWorld(b, nil).scored(1<<16, hosts, 5000)
			for b.Loop() {
				w := newWorld(b, func(o *Options) { o.Sink = Discard{} })
				ticked := w.now
				for i := range million {
					s := samples[i%len(samples)]
					s.At = w.now + int64(i)*second/5000
					w.e.Observe(&s)
					if s.At-ticked >= int64(10*time.Millisecond) {
						w.e.Tick(s.At)
						ticked = s.At
					}
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/million")
		})
	}
}

func BenchmarkTick(b *testing.B) {
	prepare := func(b *testing.B) *world {
		w := newWorld(b, func(o *Options) { o.Sink = Discard{} })
		w2 := newWorld(b, nil)
		samples := w2.scored(30_000, 10_000, 5000)
		for i := range samples {
			w.e.Observe(&samples[i])
		}
		w.now = samples[len(samples)-1].At
		w.e.Settle(w.now)
		return w
	}
	b.Run("idle", func(b *testing.B) {
		w := prepare(b)
		b.ReportAllocs()
		for b.Loop() {
			w.e.Tick(w.now)
		}
	})
	b.Run("renew-500", func(b *testing.B) {
		w := prepare(b)
		for b.Loop() {
			w.now += int64(w.e.opt.TTL) // everything is due; one tick renews a part
			w.e.Tick(w.now)
		}
	})
}

func BenchmarkSnapshot(b *testing.B) {
	w := newWorld(b, func(o *Options) { o.Sink = Discard{} })
	samples := newWorld(b, nil).scored(40_000, 10_000, 5000)
	for i := range samples {
		w.e.Observe(&samples[i])
	}
	w.e.Settle(w.now)
	b.ReportAllocs()
	for b.Loop() {
		w.e.View(time.Unix(0, w.now))
	}
}

// TestBytesPerPath keeps 10,000 paths within the memory that the daemon may have.
func TestBytesPerPath(t *testing.T) {
	const paths, most = 10_000, 2600
	w := newWorld(t, func(o *Options) { o.Sink = Discard{} })
	// A host to each /24: as many nodes as paths.
	fill := func() {
		s := w.connectAny()
		for i := range paths {
			for k := range 6 {
				s.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}), 443)
				s.Arm, s.At = three[k%3], w.now+int64(i)*1000
				s.CC = s.Arm
				w.e.Observe(s)
			}
		}
		w.e.Settle(w.now)
		for more := true; more; {
			_, _, more = w.e.Unsaved(1000)
			w.e.Saved(time.Unix(0, w.now), nil)
		}
	}
	before := heap()
	fill()
	per := (heap() - before) / paths
	t.Logf("%d bytes per path with 3 arms", per)
	if got := w.e.View(time.Unix(0, w.now)).Totals.Paths; got != paths {
		t.Fatalf("%d paths, want %d", got, paths)
	}
	if per > most {
		t.Errorf("%d bytes per path, want at most %d", per, most)
	}
	runtime.KeepAlive(w)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// connectAny is a scored sample of the first rule's class; it works without a sink.
func (w *world) connectAny() *tcp.Sample {
	s := w.sample(ip("10.0.0.1"))
	s.Class = w.e.rules.states[0].class
	s.Arm, s.CC = cubic, cubic
	s.BytesAcked, s.DataSegsOut, s.DeliveryRate = 6_000_000, 4200, 6_000_000
	return s
}
