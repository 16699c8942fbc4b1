package estimate

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// wire is a simulated link. Times are in milliseconds.
type wire struct {
	rtt    float64 // without a queue
	jitter float64 // of each packet, uniform, added in both directions
	queue  float64 // greatest queue, which bulk connections fill and leave to drain in turn
	rate   float64 // Mbit/s
	loss   int     // packets that a bulk connection loses
}

// traffic is a second of small connections, ten of them, and one bulk connection. The queue is
// empty for half of the time.
func (l wire) traffic(p *Path, rng *rand.Rand, at int64, small bool) {
	for i := range int64(10) {
		queue := l.queue * max(0, float64(i)-4) / 5
		if small {
			queue = 0
		}
		p.Observe(l.connection(rng, at+i*100e6, queue, 1+rng.IntN(3)))
	}
	if !small {
		s := l.connection(rng, at+1e9, l.queue*0.8, 2000)
		s.MinRTT = uint32(min(float64(s.MinRTT), 1e3*l.one(rng, l.queue*rng.Float64())))
		s.Lost, s.Retrans, s.RTTVar, s.Duration = uint32(l.loss), uint32(l.loss), uint32(100*(1+l.jitter)), time.Second
		s.Flags, s.DeliveryRate, s.SRTT = 0, uint64(l.rate*125e3), s.MinRTT+uint32(800*l.queue)
		p.Observe(s)
	}
}

// one is the round-trip time of a packet, milliseconds.
func (l wire) one(rng *rand.Rand, queue float64) float64 {
	return l.rtt*(1+0.005*rng.Float64()) + 0.02*rng.Float64() + queue + l.jitter*(rng.Float64()+rng.Float64())
}

// connection is one that sends a number of packets when the queue has a length, as the kernel
// measures its round-trip times (RFC 6298).
func (l wire) connection(rng *rand.Rand, at int64, queue float64, packets int) *tcp.Sample {
	first := l.one(rng, queue)
	least, srtt, off := first, first, first/2
	for range min(packets, 100) + 1 {
		rtt := l.one(rng, queue)
		least = min(least, rtt)
		off += (math.Abs(rtt-srtt) - off) / 4
		srtt += (rtt - srtt) / 8
	}
	return &tcp.Sample{
		Kind: tcp.KindClose, At: at, Flags: tcp.FlagAppLimited, Duration: time.Duration(2 * srtt * 1e6), Busy: time.Duration(srtt * 1e6),
		DataSegsOut: uint32(packets), SegsOut: uint32(packets), MSS: 1448, Cwnd: 10, Ssthresh: tcp.InfiniteSsthresh,
		MinRTT: uint32(1e3 * least), SRTT: uint32(1e3 * srtt), RTTVar: uint32(1e3 * off), DeliveryRate: 1e5,
	}
}

// path is what is known after some seconds of traffic.
func (l wire) path(seed uint64, seconds int, small bool) *Path {
	p, rng := new(Path), rand.New(rand.NewPCG(seed, 3))
	for i := range seconds {
		l.traffic(p, rng, t0+int64(i)*int64(time.Second), small)
	}
	return p
}

func TestNetworkTypes(t *testing.T) {
	for _, c := range []struct {
		name    string
		wire    wire
		seconds int
		small   bool
		want    NetworkType
	}{
		{"racks of a datacentre", wire{rtt: 0.1, rate: 10_000}, 5, false, Datacentre},
		{"its port with incast", wire{rtt: 0.1, queue: 8, rate: 1000, loss: 5}, 5, false, Datacentre},
		{"a switch of an office", wire{rtt: 0.9, rate: 1000}, 5, false, LAN},
		{"the same, small requests only", wire{rtt: 0.9, rate: 1000}, 5, true, LAN},
		{"Wi-Fi at home", wire{rtt: 12, jitter: 8, rate: 40, loss: 10}, 5, false, Wifi},
		{"the same, small requests only", wire{rtt: 12, jitter: 8, rate: 40}, 5, true, Wifi},
		{"Wi-Fi to a host in the same house", wire{rtt: 2, jitter: 2, rate: 100}, 5, false, Wifi},
		{"Wi-Fi to another continent, of which little is seen", wire{rtt: 90, jitter: 5, queue: 40, rate: 4}, 5, false, UnknownNetwork},
		{"LTE", wire{rtt: 40, jitter: 20, queue: 300, rate: 15}, 8, false, Cellular},
		{"LTE without a queue", wire{rtt: 40, jitter: 20, rate: 15}, 5, true, Cellular},
		{"a geostationary satellite", wire{rtt: 600, jitter: 10, rate: 20, loss: 10}, 5, false, Satellite},
		{"a cable modem with a long queue", wire{rtt: 20, queue: 200, rate: 20}, 8, false, Bufferbloated},
		{"the same, not filled", wire{rtt: 20, queue: 200, rate: 20}, 8, true, UnknownNetwork},
		{"another continent", wire{rtt: 100, queue: 20, rate: 90}, 5, false, LongFat},
		{"the same, slow", wire{rtt: 100, queue: 20, rate: 2}, 5, false, UnknownNetwork},
		{"a path across a country", wire{rtt: 20, queue: 15, rate: 100}, 5, false, UnknownNetwork},
		{"the same with losses", wire{rtt: 20, queue: 5, rate: 20, loss: 20}, 5, false, UnknownNetwork},
	} {
		for seed := range uint64(10) {
			p := c.wire.path(seed, c.seconds, c.small)
			if got := p.Network.Type; got != c.want {
				t.Errorf("%s, seed %d: %s, want %s: %s; %+v", c.name, seed, got, c.want, p.WhyNetwork(), *p)
			}
		}
	}
}

// What is said of a type names the measures and the bounds of its rule.
func TestWhyNetwork(t *testing.T) {
	for _, c := range []struct {
		wire    wire
		policed uint64
		want    []string
	}{
		{wire{rtt: 600, rate: 20}, 0, []string{"least round-trip time 600ms (at least 477ms)"}},
		{wire{rtt: 20, queue: 200, rate: 20}, 0, []string{"ms (at least 60ms)", "100 % of the connections that came within 6ms of it came within 1ms (at least 60 %)"}},
		{wire{rtt: 12, jitter: 8}, 0, []string{"least round-trip time 1", "ms (at least 1ms, below 30ms), ", " % of the connections that came within"}},
		{wire{rtt: 20, rate: 100}, 0, []string{"no type fits: least round-trip time 20ms, 100 %", "bandwidth-delay product 2 Mbit"}},
		{wire{rtt: 20, rate: 100}, 2_500_000, []string{"show policed, which applies after 1s of such samples: a policer limits it to 20 Mbit/s"}},
	} {
		p := c.wire.path(1, 8, false)
		why := p.why(p.measures(c.policed)).String()
		for _, want := range c.want {
			if !strings.Contains(why, want) {
				t.Errorf("%+v: %q lacks %q", c.wire, why, want)
			}
		}
	}
	if got := leastRTT.unit(3); got != "3µs" {
		t.Errorf("a round-trip time of 3 us is written as %s", got)
	}
	var p Path
	if got, want := p.WhyNetwork().String(), "no round-trip time is known"; got != want {
		t.Errorf("nothing known: %q, want %q", got, want)
	}
	p = *wire{rtt: 20}.path(1, 1, true)
	p.Floor = Floor{RTT: 20_000, Met: 1, Close: 2, All: 12}
	if got, want := p.WhyNetwork().String(), "of 12 connections without a retransmission, 1 had the least round-trip time again"; !strings.Contains(got, want) {
		t.Errorf("little known: %q lacks %q", got, want)
	}
}

// The rate of a policer that was found decides alone, whatever else the path looks like.
func TestPoliced(t *testing.T) {
	for _, l := range []wire{{rtt: 0.1, rate: 1000}, {rtt: 600, rate: 20}, {rtt: 20, rate: 20}} {
		m := l.path(1, 5, false).measures(2_500_000)
		if got, _ := m.classify(); got != Policed {
			t.Errorf("%+v with a policer: %s", l, got)
		}
	}
}

// At its bound a condition of "at least" holds, and one of "below" does not; neither holds for
// what is not known.
func TestConditions(t *testing.T) {
	for _, r := range networkRules {
		for _, c := range r.conditions {
			if c.holds(c.bound) == c.below || c.holds(math.Nextafter32(c.bound, 0)) != c.below || c.holds(unknown) || c.holds(float32(math.NaN())) {
				t.Errorf("%s: %+v", r.is, c)
			}
		}
	}
}

// Every Path has exactly one type, and a reason for it, whatever its values are.
func FuzzNetworkType(f *testing.F) {
	f.Add(uint64(1), uint64(0))
	f.Fuzz(func(t *testing.T, seed, policed uint64) {
		r := rand.New(rand.NewPCG(seed, 4))
		float := func() float32 {
			return [...]float32{0, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), -1, math.MaxFloat32, 1, 20, 1e4, 1e6, math.Float32frombits(r.Uint32())}[r.IntN(11)]
		}
		window := func() Window {
			return Window{Half: r.Uint64() >> r.IntN(64), Before: r.Uint64() >> r.IntN(64), Began: r.Int64()}
		}
		p := Path{
			MinRTT: window(), Rate: window(), Queue: window(), RTTs: r.Uint32() >> r.IntN(32), Small: r.Uint32() >> r.IntN(32), Spread: float(),
			Floor:   Floor{RTT: float(), Met: float(), Close: float(), All: float()},
			Network: Network{Type: NetworkType(r.UintN(300)), Next: NetworkType(r.UintN(300)), Shown: uint16(r.Uint32()), Since: r.Int64()},
		}
		m := p.measures(policed)
		got, _ := m.classify()
		if again, _ := m.classify(); got >= numNetworkTypes || again != got {
			t.Errorf("%+v: type %d, then %d", p, got, again)
		}
		if p.why(m).String() == "" {
			t.Errorf("%+v: no reason", p)
		}
		p.Observe(short(t0))
		if p.Network.Type.String() == "" {
			t.Errorf("%+v: no word", p)
		}
	})
}

// A type changes only if another one is shown by enough samples in a row, for half of the time
// that it lasted.
func TestTypeDoesNotFlap(t *testing.T) {
	const ms = int64(time.Millisecond)
	n := Network{Type: Wifi, From: t0}
	for i := range int64(1000) {
		if n.show([]NetworkType{Wifi, LAN}[i%2], t0+i*1000*ms); n.Type != Wifi {
			t.Fatalf("changed after %d alternating samples: %+v", i, n)
		}
	}
	for i := range int64(1000) { // other types, no two in a row
		if n.show([]NetworkType{Satellite, LAN}[i%2], t0+i*1000*ms); n.Type != Wifi {
			t.Fatalf("changed after %d samples of two others in turn: %+v", i, n)
		}
	}
	for _, c := range []struct {
		name    string
		is      NetworkType
		lasted  int64 // ms
		every   int64 // ms
		samples int
	}{
		{"from unknown, few samples", UnknownNetwork, 1e6, 1000, 4},
		{"from unknown, many samples", UnknownNetwork, 1e6, 10, 101},
		{"from a first guess", Wifi, 1000, 100, 11},
		{"after some time, many samples", Wifi, 6000, 10, 301},
		{"after some time, few samples", Wifi, 6000, 2000, 4},
		{"after a long time, many samples", Wifi, 1e6, 10, 1001},
		{"after a long time, few samples", Wifi, 1e6, 5000, 10},
		{"restored", Wifi, t0 / ms, 10, 1001},
	} {
		n, begin, shown := Network{Type: c.is, From: t0 - c.lasted*ms}, t0, 0
		for ; n.Type == c.is && shown < 10_000; shown++ {
			n.show(Cellular, begin+int64(shown)*c.every*ms)
		}
		if want := (Network{Type: Cellular, From: begin + int64(shown-1)*c.every*ms}); n != want || shown != c.samples {
			t.Errorf("%s: %+v after %d samples, want %+v after %d", c.name, n, shown, want, c.samples)
		}
	}
}

func TestNetworkTypeText(t *testing.T) {
	seen := map[string]bool{}
	for _, is := range NetworkTypes() {
		text, err := json.Marshal(is)
		var back NetworkType
		if err != nil || json.Unmarshal(text, &back) != nil || back != is || seen[is.String()] {
			t.Errorf("%s: %s, read back %s, %v", is, text, back, err)
		}
		seen[is.String()] = true
	}
	back := Satellite
	if err := json.Unmarshal([]byte(`"moon"`), &back); err != nil || back != UnknownNetwork {
		t.Errorf("a word of another version: %s, %v", back, err)
	}
}

func TestFloor(t *testing.T) {
	var f Floor
	for _, c := range []struct {
		name      string
		rtt, path float32
		want      Floor
	}{
		{"the first", 20_000, 20_000, Floor{RTT: 20_000, All: 1}},
		{"the same", 20_900, 20_000, Floor{RTT: 20_000, Met: 1, Close: 1, All: 2}},
		{"a little less", 19_600, 19_600, Floor{RTT: 19_600, Met: 2, Close: 2, All: 3}},
		{"close", 25_400, 19_600, Floor{RTT: 19_600, Met: 2, Close: 3, All: 4}},
		{"far", 25_600, 19_600, Floor{RTT: 19_600, Met: 2, Close: 3, All: 5}},
		{"less", 18_000, 18_000, Floor{RTT: 18_000, Close: 3, All: 6}},
		{"much less", 10_000, 10_000, Floor{RTT: 10_000, All: 7}},
		{"the path became longer", 13_100, 13_100, Floor{RTT: 13_100, All: 1}},
	} {
		if f.observe(c.rtt, c.path); f != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, f, c.want)
		}
	}
	for range 10_000 {
		f.observe(13_100, 13_100)
	}
	if f.All >= manyFloors || f.Met < 0.9*f.All || f.Close != f.Met {
		t.Errorf("after many connections: %+v", f)
	}
}

// Connections that retransmitted do not count for the floor: their round-trip times may be
// rounded down to milliseconds. Nor do those that are measured as a part.
func TestWhatCountsForTheFloor(t *testing.T) {
	for name, change := range map[string]func(*tcp.Sample){
		"retransmitted":    func(s *tcp.Sample) { s.Retrans, s.MinRTT = 1, 19_000 },
		"interval":         func(s *tcp.Sample) { s.Kind = tcp.KindInterval },
		"later":            func(s *tcp.Sample) { s.Flags |= tcp.FlagLater },
		"failed":           func(s *tcp.Sample) { s.Kind = tcp.KindFailedConnect },
		"no round trip":    func(s *tcp.Sample) { s.SRTT = 0 },
		"no least one":     func(s *tcp.Sample) { s.MinRTT = 0 },
		"everything is as": nil,
	} {
		var p Path
		s := short(t0)
		if change != nil {
			change(s)
		}
		if p.Observe(s); (p.Floor.All == 0) != (change != nil) {
			t.Errorf("%s: %+v", name, p.Floor)
		}
	}
}

// Only small connections that did not wait for anything else tell the spread; only long ones
// with a steady round-trip time tell the queue.
func TestSpreadAndQueue(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(s *tcp.Sample)
		small  uint32
		queue  uint64
	}{
		{"small", func(*tcp.Sample) {}, 1, 0},
		{"five packets", func(s *tcp.Sample) { s.DataSegsOut = 5 }, 0, 0},
		{"no data", func(s *tcp.Sample) { s.DataSegsOut = 0 }, 0, 0},
		{"later requests", func(s *tcp.Sample) { s.Duration = time.Second }, 0, 0},
		{"a loss", func(s *tcp.Sample) { s.Lost = 1 }, 0, 0},
		{"bulk", func(s *tcp.Sample) { s.DataSegsOut, s.SRTT, s.RTTVar = 100, 80_100, 1000 }, 0, 60_000},
		{"bulk whose queue changes", func(s *tcp.Sample) { s.DataSegsOut, s.SRTT, s.RTTVar = 100, 80_100, 20_000 }, 0, 0},
		{"bulk, measured as a part", func(s *tcp.Sample) { s.Kind, s.DataSegsOut, s.SRTT, s.RTTVar = tcp.KindInterval, 100, 80_100, 1000 }, 0, 60_000},
	} {
		var p Path
		s := short(t0)
		c.change(s)
		if p.Observe(s); p.Small != c.small || p.Queue.Greatest() != c.queue {
			t.Errorf("%s: %d small, queue %d; want %d, %d", c.name, p.Small, p.Queue.Greatest(), c.small, c.queue)
		}
	}
}
