package learn

import (
	"math"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// bulk is a 1 s transfer at the given rate, bounded by the path.
func bulk(bytesPerSecond float64) tcp.Sample {
	n := uint64(bytesPerSecond)
	return tcp.Sample{
		Kind: tcp.KindClose, End: tcp.EndFin, At: start, Duration: time.Second + 20*time.Millisecond, Busy: time.Second,
		BytesAcked: n, DataSegsOut: uint32(n / 1448), Delivered: uint32(n / 1448), MSS: 1448, Cwnd: 100,
		MinRTT: 20_000, SRTT: 25_000, RTTVar: 1000, DeliveryRate: n,
	}
}

func with(s tcp.Sample, f func(*tcp.Sample)) *tcp.Sample {
	f(&s)
	return &s
}

// appLimitedStalled is a connection of a second at 30,000 bytes/s on a machine that stalled, as it was
// recorded, with so many retransmissions that its peer did not need.
func appLimitedStalled(s *tcp.Sample, spurious uint32) {
	s.Duration, s.Busy, s.BytesAcked, s.DataSegsOut, s.Delivered = 1547*time.Millisecond, 1216*time.Millisecond, 28558, 192, 194
	s.MinRTT, s.SRTT, s.RTTVar, s.Cwnd, s.Ssthresh, s.DeliveryRate = 5038, 37529, 48867, 10, tcp.InfiniteSsthresh, 30987
	s.Retrans, s.DSACKs = 1, spurious
}

func TestRewardIgnores(t *testing.T) {
	big := bulk(1e6)
	for _, c := range []struct {
		name string
		o    Objective
		want Ignored
		f    func(*tcp.Sample)
	}{
		{"bulk transfer", Throughput, Scored, func(*tcp.Sample) {}},
		{"bulk transfer ended by RST", Throughput, Scored, func(s *tcp.Sample) { s.End = tcp.EndReset }},
		{"hold-out", Throughput, Scored, func(s *tcp.Sample) { s.Flags = tcp.FlagHoldOut }},
		{"failed connect", Throughput, FailedConnect, func(s *tcp.Sample) { s.Kind = tcp.KindFailedConnect }},
		{"application's own choice", Latency, AppCC, func(s *tcp.Sample) { s.Flags = tcp.FlagAppCC }},
		{"arm refused", Throughput, ArmFailed, func(s *tcp.Sample) { s.Flags = tcp.FlagArmFailed }},
		{"changed on the way", FCT, CCChanged, func(s *tcp.Sample) { s.Flags = tcp.FlagCCChanged }},
		{"older than tcpilot", Throughput, Adopted, func(s *tcp.Sample) { s.Flags = tcp.FlagAdopted }},
		{"receiver of data", Throughput, TooSmall, func(s *tcp.Sample) {
			s.BytesAcked, s.BytesReceived, s.Busy = 300, 1e9, 21*time.Millisecond
		}},
		{"fits the initial window", FCT, TooSmall, func(s *tcp.Sample) {
			s.BytesAcked, s.Busy = 14480, 21*time.Millisecond
		}},
		{"a few packets only", Latency, TooSmall, func(s *tcp.Sample) {
			s.BytesAcked, s.Busy = 5*1448, 21*time.Millisecond
		}},
		{"given up before data", Throughput, TooSmall, func(s *tcp.Sample) { s.BytesAcked, s.End = 0, tcp.EndAborted }},
		{"given up halfway", FCT, Aborted, func(s *tcp.Sample) { s.End = tcp.EndAborted }},
		{"mostly idle", Throughput, AppLimited, func(s *tcp.Sample) {
			s.Flags, s.Duration = tcp.FlagAppLimited, time.Minute
		}},
		{"window never filled", Throughput, AppLimited, func(s *tcp.Sample) {
			s.Flags, s.Cwnd = tcp.FlagAppLimited, 1000
		}},
		{"window never filled, and a stalled machine sent a segment twice", Throughput, AppLimited, func(s *tcp.Sample) { appLimitedStalled(s, 1) }},
		{"window never filled, and a segment was lost", Throughput, Scored, func(s *tcp.Sample) { appLimitedStalled(s, 0) }},
		{"window filled", Throughput, Scored, func(s *tcp.Sample) { s.Flags, s.Cwnd = tcp.FlagAppLimited, 20 }},
		{"slow reader", Throughput, ReceiverLimited, func(s *tcp.Sample) { s.RwndLtd = 950 * time.Millisecond }},
		{"slow reader", FCT, ReceiverLimited, func(s *tcp.Sample) { s.RwndLtd = 950 * time.Millisecond }},
		{"small send buffer", Throughput, SndbufLimited, func(s *tcp.Sample) { s.SndbufLtd = 950 * time.Millisecond }},
		{"no round-trip time", Latency, NoRTT, func(s *tcp.Sample) { s.MinRTT, s.SRTT = 0, 0 }},
		{"no round-trip time", FCT, NoRTT, func(s *tcp.Sample) { s.MinRTT = 0 }},
		{"no round-trip time", Throughput, Scored, func(s *tcp.Sample) { s.MinRTT, s.SRTT = 0, 0 }},
	} {
		t.Run(c.o.String()+"/"+c.name, func(t *testing.T) {
			out, why := Reward(c.o, with(big, c.f), 0)
			if why != c.want {
				t.Fatalf("got %v, want %v", why, c.want)
			}
			if why != Scored && out != (Outcome{}) {
				t.Errorf("an ignored sample has outcome %+v", out)
			}
			if why == Scored && (!out.usable() || out.Weight > 1) {
				t.Errorf("a scored sample has outcome %+v", out)
			}
		})
	}
}

func TestIgnoredNamesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for i := range NumIgnored {
		if s := i.String(); s == "" || s == "unknown" || seen[s] {
			t.Errorf("Ignored(%d) is %q", i, s)
		}
		seen[i.String()] = true
	}
	if NumIgnored.String() != "unknown" {
		t.Error("the list is not closed")
	}
}

// bpftune counts whole MB/s: a connection slower than 8 Mbit/s scores 0.
func TestSlowLinksAreToldApart(t *testing.T) {
	arms, l, b := ccs("cubic", "bbr"), DefaultThompson(), &Belief{}
	for i := range 10 {
		for k, kbit := range []float64{200, 500} {
			s := bulk(kbit * 1e3 / 8)
			out, why := Reward(Throughput, &s, 0)
			if why != Scored {
				t.Fatalf("%v kbit/s: %v", kbit, why)
			}
			out.At = start + int64(i)*second
			l.Observe(b, arms[k], out)
		}
	}
	if d := b.Arms[1].Mean - b.Arms[0].Mean; math.Abs(d-math.Log(2.5)) > 0.01 {
		t.Errorf("500 kbit/s is exp(%v) times 200 kbit/s", d)
	}
	w := make([]float64, 2)
	if best := l.Weights(w, arms, -1, b, nil, b.Last); best != 1 || w[1] < 0.9 {
		t.Errorf("best %d of shares %v", best, w)
	}
}

func TestThroughputIsAFactorOnAnyLink(t *testing.T) {
	for _, rate := range []float64{2e5, 1e7, 1e9} {
		slow, fast := bulk(rate), bulk(3*rate)
		a, _ := Reward(Throughput, &slow, 0)
		b, _ := Reward(Throughput, &fast, 0)
		if d := b.Reward - a.Reward; math.Abs(d-math.Log(3)) > 1e-3 {
			t.Errorf("at %v bytes/s three times the goodput is worth %v", rate, d)
		}
	}
}

// In a shallow buffer, the goodput that an arm gains by overfilling it may be a fifth of
// what it retransmits: other connections on the link pay for that.
func TestThroughputDoesNotRewardOverfillingABuffer(t *testing.T) {
	polite, flood := bulk(71e5), bulk(93e5)
	flood.Retrans = flood.DataSegsOut * 18 / 100
	a, _ := Reward(Throughput, &polite, 0)
	b, _ := Reward(Throughput, &flood, 0)
	if b.Reward >= a.Reward {
		t.Errorf("overfilling %v, not overfilling %v", b.Reward, a.Reward)
	}
	// Random loss of a path costs all arms the same share of what they send.
	for _, s := range []*tcp.Sample{&polite, &flood} {
		s.Retrans = s.DataSegsOut / 20
	}
	a, _ = Reward(Throughput, &polite, 0)
	b, _ = Reward(Throughput, &flood, 0)
	if d := b.Reward - a.Reward; math.Abs(d-math.Log(93./71)) > 0.01 {
		t.Errorf("a third more goodput on a lossy path is worth %v", d)
	}
}

func TestShorterQueueIsBetterOnAFullLink(t *testing.T) {
	short, long := bulk(2.4e6), bulk(2.45e6)
	long.SRTT = 400_000
	a, _ := Reward(Throughput, &short, 20_000)
	b, _ := Reward(Throughput, &long, 20_000)
	if a.Reward <= b.Reward {
		t.Errorf("short queue %v, long queue and 2 %% more %v", a.Reward, b.Reward)
	}
	slow := bulk(1.6e6)
	if c, _ := Reward(Throughput, &slow, 20_000); c.Reward >= b.Reward {
		t.Errorf("short queue at two thirds of the rate %v, long queue %v", c.Reward, b.Reward)
	}
}

// An arm with hardly any goodput must be scored, although its connections carry few packets.
func TestStalledConnectionIsScored(t *testing.T) {
	s := bulk(5 * 1448)
	s.Retrans, s.DataSegsOut = 4, 9
	if out, why := Reward(Throughput, &s, 0); why != Scored || out.Reward > math.Log(1e4) {
		t.Errorf("got %+v, %v", out, why)
	}
	s.Retrans, s.Flags = 0, tcp.FlagAppLimited // slow for lack of data, not of path
	if _, why := Reward(Throughput, &s, 0); why != TooSmall {
		t.Errorf("without data to send: %v", why)
	}
}

func TestReceiverLimitedTimeNeitherInflatesNorCounts(t *testing.T) {
	free, half := bulk(1e7), bulk(1e7)
	half.RwndLtd = 500 * time.Millisecond
	a, _ := Reward(Throughput, &free, 0)
	b, _ := Reward(Throughput, &half, 0)
	if a.Reward != b.Reward {
		t.Errorf("half limited by the receiver: %v, else %v", b.Reward, a.Reward)
	}
	if math.Abs(b.Weight/a.Weight-0.5) > 1e-9 {
		t.Errorf("weights %v and %v", b.Weight, a.Weight)
	}
}

func TestWeightRisesWithEvidence(t *testing.T) {
	last := 0.0
	for _, rate := range []float64{30 * 1448, 300 * 1448, 3e6, 3e8} {
		s := bulk(rate)
		out, why := Reward(Throughput, &s, 0)
		if why != Scored || out.Weight <= last || out.Weight > 1 {
			t.Errorf("%v bytes: weight %v after %v (%v)", rate, out.Weight, last, why)
		}
		last = out.Weight
	}
	whole, part := bulk(1e7), bulk(1e7)
	part.Kind = tcp.KindInterval
	a, _ := Reward(Throughput, &whole, 0)
	b, _ := Reward(Throughput, &part, 0)
	if b.Weight >= a.Weight {
		t.Errorf("an interval weighs %v, a connection %v", b.Weight, a.Weight)
	}
}

// bpftune compares min_rtt, which the connection's own queue never raises: at 20 ms and a
// queue of 1000 packets it chose the arms that fill the queue.
func TestBufferbloatIsSeen(t *testing.T) {
	arms, l, b := ccs("cubic", "bbr"), DefaultThompson(), &Belief{}
	for i := range 20 {
		for k, srtt := range []uint32{400_000, 30_000} {
			s := bulk(2.4e6)
			s.SRTT = srtt
			out, why := Reward(Latency, &s, b.MinRTT)
			if why != Scored {
				t.Fatal(why)
			}
			out.At = start + int64(i)*second
			l.Observe(b, arms[k], out)
		}
	}
	w := make([]float64, 2)
	if best := l.Weights(w, arms, -1, b, nil, b.Last); best != 1 || w[1] < 0.95 {
		t.Errorf("best %d of shares %v", best, w)
	}
}

func TestLatencyKnowsThePathWithoutItsQueue(t *testing.T) {
	// A standing queue hides the path's own delay from min_rtt; the handshake and
	// other connections saw it.
	s := bulk(1e6)
	s.MinRTT, s.SRTT = 200_000, 220_000
	blind, _ := Reward(Latency, &s, 0)
	told, _ := Reward(Latency, &s, 20_000)
	s.Connect = 20 * time.Millisecond
	shook, _ := Reward(Latency, &s, 0)
	if want := -math.Log(11); math.Abs(told.Reward-want) > 1e-9 || told.Reward != shook.Reward {
		t.Errorf("with the path's min_rtt %v, with the handshake %v, want %v", told.Reward, shook.Reward, want)
	}
	if blind.Reward <= told.Reward {
		t.Errorf("without either %v", blind.Reward)
	}
}

func TestLatencyAndRealtimePenalties(t *testing.T) {
	calm, lost, shaky := bulk(1e6), bulk(1e6), bulk(1e6)
	lost.Retrans = lost.DataSegsOut / 100
	shaky.RTTVar = 20_000
	for _, o := range []Objective{Latency, Realtime} {
		a, _ := Reward(o, &calm, 0)
		b, _ := Reward(o, &lost, 0)
		if d := a.Reward - b.Reward; math.Abs(d-0.1) > 0.02 {
			t.Errorf("%v: 1 %% retransmitted costs %v, want about 0.1", o, d)
		}
	}
	a, _ := Reward(Latency, &shaky, 0)
	b, _ := Reward(Realtime, &shaky, 0)
	if b.Reward >= a.Reward {
		t.Errorf("variation: realtime %v, latency %v", b.Reward, a.Reward)
	}
}

func TestFCTComparesSizesFairly(t *testing.T) {
	// The same path, in slow start and in bulk: a reward that followed the size
	// would hide the difference between arms.
	at := func(bytes uint64, busy time.Duration) float64 {
		s := bulk(float64(bytes))
		s.Busy, s.Duration = busy, busy
		out, why := Reward(FCT, &s, 0)
		if why != Scored {
			t.Fatal(why)
		}
		return out.Reward
	}
	small, large := at(100_000, 65*time.Millisecond), at(1_000_000, 140*time.Millisecond)
	bulky, bulkier := at(100<<20, 10*time.Second), at(200<<20, 20*time.Second)
	if math.Abs(small-large) > 0.3 {
		t.Errorf("100 kB in 3 rounds %v, 1 MB in 7 %v", small, large)
	}
	if math.Abs(bulky-bulkier) > 0.1 {
		t.Errorf("100 MiB in 10 s %v, 200 MiB in 20 s %v", bulky, bulkier)
	}
	if d := at(100_000, 65*time.Millisecond) - at(100_000, 130*time.Millisecond); math.Abs(d-math.Ln2) > 1e-9 {
		t.Errorf("half the time is worth %v", d)
	}
}

func TestRewardIsFiniteForAnySample(t *testing.T) {
	values := []uint64{0, 1, 1448, 1 << 20, 1 << 40}
	times := []time.Duration{0, 1, time.Microsecond, time.Second, time.Hour}
	for _, bytes := range values {
		for _, busy := range times {
			for _, limited := range times {
				for _, rtt := range []uint32{0, 1, 30, 1 << 30} {
					s := tcp.Sample{Kind: tcp.KindClose, BytesAcked: bytes, Busy: busy, RwndLtd: limited / 2, Duration: busy,
						MinRTT: rtt, SRTT: rtt, RTTVar: rtt, Retrans: uint32(rtt), At: start}
					for o := Throughput; o <= Realtime; o++ {
						out, why := Reward(o, &s, rtt/2)
						if why == Scored && (math.IsNaN(out.Reward) || math.Abs(out.Reward) > maxReward ||
							!(out.Weight >= 0 && out.Weight <= 1) || !(out.Loss >= 0 && out.Loss <= 1)) {
							t.Fatalf("%v of %+v: %+v", o, s, out)
						}
					}
				}
			}
		}
	}
}
