package estimate

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const t0 = int64(1_700_000_000e9)

// bulk is a long connection over a path of 20 ms and 12.5 MB/s, as cubic ends it.
func bulk(at int64) *tcp.Sample {
	return &tcp.Sample{
		Kind: tcp.KindClose, At: at, Duration: 2 * time.Second, Busy: 2 * time.Second, BytesAcked: 20e6,
		DataSegsOut: 14_000, SegsOut: 14_000, Delivered: 14_000, Lost: 14, Retrans: 14,
		MinRTT: 20_000, SRTT: 24_000, RTTVar: 1000, Cwnd: 180, Ssthresh: 170, MSS: 1448, DeliveryRate: 12_500_000,
	}
}

// short is a connection of three packets over the same path.
func short(at int64) *tcp.Sample {
	return &tcp.Sample{
		Kind: tcp.KindClose, At: at, Duration: 30 * time.Millisecond, Busy: 20 * time.Millisecond, BytesAcked: 4000,
		Flags: tcp.FlagAppLimited, DataSegsOut: 3, SegsOut: 5, Delivered: 3,
		MinRTT: 20_100, SRTT: 21_000, RTTVar: 5000, Cwnd: 10, Ssthresh: tcp.InfiniteSsthresh, MSS: 1448, DeliveryRate: 200_000,
	}
}

func TestObserve(t *testing.T) {
	var p Path
	p.Observe(bulk(t0))
	if got, want := p.MinRTT.Least(), uint64(20_000); got != want {
		t.Errorf("min_rtt %d, want %d", got, want)
	}
	if got, want := p.Rate.Greatest(), uint64(12_500_000); got != want {
		t.Errorf("rate %d, want %d", got, want)
	}
	if got, want := p.Ssthresh.Greatest(), uint64(170); got != want {
		t.Errorf("ssthresh %d, want %d", got, want)
	}
	if p.SRTT != 24_000 || p.RTTVar != 1000 {
		t.Errorf("the first sample is the smoothed round-trip time: %v, %v", p.SRTT, p.RTTVar)
	}
	if loss, ok := p.Loss(); !ok || math.Abs(loss-0.001) > 1e-6 {
		t.Errorf("loss %v, %v", loss, ok)
	}
	if p.Updated != t0 {
		t.Errorf("updated %d", p.Updated)
	}
}

// Short connections, which fit the initial window, neither lower the threshold nor the rate.
func TestShortConnectionsDoNotLowerWhatIsKnown(t *testing.T) {
	var p Path
	p.Observe(bulk(t0))
	for i := range int64(1000) {
		s := short(t0 + i*20e6) // 20 s of them
		if i%10 == 0 {          // a loss ended slow start early
			s.Ssthresh, s.Lost = 4, 1
		}
		p.Observe(s)
	}
	if got := p.Ssthresh.Greatest(); got != 170 {
		t.Errorf("ssthresh %d, want 170", got)
	}
	if got := p.Rate.Greatest(); got != 12_500_000 {
		t.Errorf("rate %d, want 12500000", got)
	}
	if got := p.SRTT; got < 20_900 || got > 21_100 {
		t.Errorf("srtt %v follows the samples: want about 21000", got)
	}
}

// A path that became ten times slower is known as such after the windows' length.
func TestOldConditionsAreForgotten(t *testing.T) {
	var p Path
	p.Observe(bulk(t0))
	s := bulk(t0 + int64(time.Hour))
	s.MinRTT, s.SRTT, s.DeliveryRate, s.Ssthresh = 200_000, 220_000, 1_250_000, 40
	p.Observe(s)
	if p.MinRTT.Least() != 200_000 || p.Rate.Greatest() != 1_250_000 || p.Ssthresh.Greatest() != 40 {
		t.Errorf("%+v", p)
	}
	if p.SRTT < 219_999 {
		t.Errorf("srtt %v: a sample after an hour replaces what was known", p.SRTT)
	}
}

// bbr does not set the slow start threshold: with losses, the bandwidth-delay product takes its
// place.
func TestSsthreshWithoutOne(t *testing.T) {
	s := bulk(t0)
	s.Ssthresh = tcp.InfiniteSsthresh
	if got, want := ssthresh(s), uint64(172); got != want { // 12.5e6 x 0.020 / 1448
		t.Errorf("%d, want %d", got, want)
	}
	s.Flags = tcp.FlagAppLimited
	if got := ssthresh(s); got != 0 {
		t.Errorf("limited by the application: %d, want 0", got)
	}
	s.Flags, s.Lost, s.Retrans = 0, 0, 0
	if got := ssthresh(s); got != 0 {
		t.Errorf("without losses: %d, want 0", got)
	}
	s.MSS, s.Lost = 0, 1
	if got := ssthresh(s); got != 0 {
		t.Errorf("without a segment size: %d, want 0", got)
	}
}

// A connection in slow start has had half of its window in flight, and so have the others that
// were there, up to a number.
func TestCarried(t *testing.T) {
	slowStart := func(change func(s *tcp.Sample)) *tcp.Sample {
		s := bulk(t0)
		s.Ssthresh, s.Lost, s.Retrans, s.Flags, s.Cwnd, s.DataSegsOut, s.Flows = tcp.InfiniteSsthresh, 0, 0, tcp.FlagAppLimited, 180, 700, 1
		change(s)
		return s
	}
	for _, c := range []struct {
		name   string
		sample *tcp.Sample
		want   uint64
	}{
		{"alone", slowStart(func(*tcp.Sample) {}), 90},
		{"one of five", slowStart(func(s *tcp.Sample) { s.Flows = 5 }), 450},
		{"one of 1000, most of them idle", slowStart(func(s *tcp.Sample) { s.Flows = 1000 }), 720},
		{"connections are not counted", slowStart(func(s *tcp.Sample) { s.Flows = 0 }), 90},
		{"at its delivery rate", slowStart(func(s *tcp.Sample) { s.Flags, s.Flows = 0, 2 }), 344},
		{"later, at its delivery rate", slowStart(func(s *tcp.Sample) { s.Flags = tcp.FlagLater }), 172},
		{"it left slow start", slowStart(func(s *tcp.Sample) { s.Ssthresh, s.Flows = 100, 3 }), 300},
		{"it sent less", slowStart(func(s *tcp.Sample) { s.DataSegsOut = 50 }), 50},
		{"with a loss", slowStart(func(s *tcp.Sample) { s.Lost = 1 }), 0},
		{"with a retransmission", slowStart(func(s *tcp.Sample) { s.Retrans = 1 }), 0},
		{"not its beginning", slowStart(func(s *tcp.Sample) { s.Flags |= tcp.FlagLater }), 0},
		{"a raised window that it did not use", slowStart(func(s *tcp.Sample) { s.Cwnd, s.InitCwnd = 64, 64 }), 0},
		{"a raised window that grew", slowStart(func(s *tcp.Sample) { s.Cwnd, s.InitCwnd = 128, 64 }), 64},
		{"the kernel's window", slowStart(func(s *tcp.Sample) { s.Cwnd = 10 }), 0},
	} {
		if got := carried(c.sample); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		var p Path
		if p.Observe(c.sample); p.Carried.Greatest() != c.want || (p.CarriedAt == t0) != (c.want != 0) {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
}

func TestReceiveRate(t *testing.T) {
	s := short(t0)
	s.BytesReceived, s.Duration, s.Connect = 1_000_000, 120*time.Millisecond, 20*time.Millisecond
	if got, want := receiveRate(s), uint64(10_000_000); got != want {
		t.Errorf("%d, want %d", got, want)
	}
	s.Duration = 30 * time.Millisecond // less than a round trip of data
	if got := receiveRate(s); got != 0 {
		t.Errorf("%d, want 0", got)
	}
	s.BytesReceived, s.Duration = 2000, time.Second
	if got := receiveRate(s); got != 0 {
		t.Errorf("2000 bytes: %d, want 0", got)
	}
}

// A SYN that was sent again says nothing of the round-trip time.
func TestHandshake(t *testing.T) {
	for connect, want := range map[time.Duration]uint64{15 * time.Millisecond: 15_000, 1015 * time.Millisecond: 20_000} {
		var p Path
		s := bulk(t0)
		s.Connect = connect
		p.Observe(s)
		if got := p.MinRTT.Least(); got != want {
			t.Errorf("handshake of %s: min_rtt %d, want %d", connect, got, want)
		}
	}
}

func TestLateSamplesDoNotTurnTimeBack(t *testing.T) {
	var p Path
	p.Observe(bulk(t0))
	p.Observe(short(t0 - 5e9))
	if p.Updated != t0 {
		t.Errorf("updated %d, want %d", p.Updated, t0)
	}
}

// Whatever samples say, the metrics stay finite, and what is stored is read back the same.
func FuzzObserve(f *testing.F) {
	f.Add(uint64(1), uint8(10))
	f.Fuzz(func(t *testing.T, seed uint64, n uint8) {
		r := rand.New(rand.NewPCG(seed, 2))
		var p Path
		for range n {
			p.Observe(&tcp.Sample{
				Kind: tcp.Kind(1 + r.IntN(3)), At: t0 + r.Int64N(1e13) - r.Int64N(1e13), Flags: tcp.Flags(r.Uint32()),
				Duration: time.Duration(r.Int64() >> r.IntN(63)), Connect: time.Duration(r.Int64() >> r.IntN(63)),
				BytesReceived: r.Uint64() >> r.IntN(64), DeliveryRate: r.Uint64() >> r.IntN(64),
				DataSegsOut: r.Uint32() >> r.IntN(32), Lost: r.Uint32() >> r.IntN(32),
				MinRTT: r.Uint32() >> r.IntN(32), SRTT: r.Uint32() >> r.IntN(32), RTTVar: r.Uint32() >> r.IntN(32),
				Ssthresh: r.Uint32() >> r.IntN(32), MSS: r.Uint32() >> r.IntN(32), Cwnd: r.Uint32() >> r.IntN(32), Flows: r.Uint32() >> r.IntN(32),
				RTOMin: time.Duration(RTOMins[r.IntN(len(RTOMins))]) * time.Millisecond, DSACKs: r.Uint32() >> r.IntN(32),
				DelackMax: time.Duration(DelackMaxes[r.IntN(len(DelackMaxes))]) * time.Millisecond, DataSegsIn: r.Uint32() >> r.IntN(32), SegsOut: r.Uint32() >> r.IntN(32),
				MaxPacingRate: r.Uint64() >> r.IntN(64), LossRTT: r.Uint32() >> r.IntN(32), Busy: time.Duration(r.Int64() >> r.IntN(63)), BytesAcked: r.Uint64() >> r.IntN(64),
			})
		}
		if loss, ok := p.Loss(); ok && !(loss >= 0 && loss <= 1) {
			t.Errorf("loss %v", loss)
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		back := Path{earlySince: p.earlySince} // not stored
		if err := json.Unmarshal(text, &back); err != nil || back != p {
			t.Errorf("%+v, stored and read back %+v: %v", p, back, err)
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	var p Path
	s := bulk(t0)
	b.ReportAllocs()
	for b.Loop() {
		s.At += 1e6
		p.Observe(s)
	}
}
