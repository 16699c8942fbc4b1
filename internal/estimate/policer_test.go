package estimate

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// simulated is a path whose connections follow the state of a Policer, one after the other.
type simulated struct {
	rnd  *rand.Rand
	now  int64
	path Path
	// The path: bit/s of payload and bytes, 0 is none; loss is a share.
	policer, bucket float64
	link            float64
	queue           float64 // ratio of the round-trip time when it is full to the least one
	loss            float64
	free            float64 // what a connection without pacing reaches with a policer, of its rate
	seconds         float64
	flows           int
	holdOut         float64
}

func newSimulated(seed uint64, change func(*simulated)) *simulated {
	x := &simulated{rnd: rand.New(rand.NewPCG(seed, 7)), now: t0, seconds: 1, free: 0.75, queue: 1, flows: 1}
	change(x)
	return x
}

// connection is one that begins now. It returns its sample, whose pacing rate is 0 if it is not
// paced.
func (x *simulated) connection() *tcp.Sample {
	pace := float64(x.path.Policer.Pace) * 8
	if x.rnd.Float64() < x.holdOut {
		pace = 0
	}
	reached := func(rate float64) float64 { return rate * (0.97 + 0.06*x.rnd.Float64()) }
	rate, lossShare, stretch := math.Inf(1), 0., 1.02
	if x.loss > 0 { // the formula of Mathis, with 20 ms; its losses are random
		rate = 1.22 * 1448 * 8 / 0.020 / math.Sqrt(x.loss) * (0.7 + 0.6*x.rnd.Float64())
		lossShare = x.loss
	}
	if x.link > 0 && rate > x.link {
		rate = x.link
		if pace == 0 || pace > x.link {
			lossShare += 0.02
			stretch = float64(x.queue)
		}
	}
	switch {
	case x.policer == 0 && pace > 0:
		rate = min(rate, 0.95*pace)
	case x.policer == 0:
	case pace == 0:
		rate, lossShare = min(rate, reached(x.free*x.policer)), lossShare+0.03+0.01*x.rnd.Float64()
	case pace <= x.policer:
		rate = min(rate, 0.95*pace)
	default:
		over := max(0, (pace-x.policer)*x.seconds-8*x.bucket) / (pace * x.seconds)
		rate, lossShare = min(rate, x.policer*0.93), lossShare+over
	}
	packets := rate * x.seconds / 8 / 1448 / float64(x.flows)
	lost := x.binomial(packets, lossShare)
	took := time.Duration(x.seconds * 1e9)
	x.now += int64(took) + 50e6
	return &tcp.Sample{
		Kind: tcp.KindClose, At: x.now - 25e6, Duration: took, Busy: took, BytesAcked: uint64(packets * 1448), DataSegsOut: uint32(packets + lost),
		Delivered: uint32(packets), Lost: uint32(lost), Retrans: uint32(lost), MinRTT: 20_000, SRTT: 20_400, RTTVar: 200, Cwnd: 80, Ssthresh: 70, MSS: 1448,
		MaxPacingRate: uint64(pace / 8 / float64(x.flows)), LossRTT: uint32(20_000 * stretch), Flows: uint32(x.flows),
	}
}

// binomial is a number of n packets that are lost.
func (x *simulated) binomial(n, share float64) (lost float64) {
	if mean := n * share; mean > 50 || mean == 0 {
		return math.Round(max(0, mean+math.Sqrt(mean*(1-share))*x.rnd.NormFloat64()))
	}
	for range int(n) {
		if x.rnd.Float64() < share {
			lost++
		}
	}
	return lost
}

// run makes n connections, and returns after how many the limit was found; 0: it was not.
func (x *simulated) run(n int) (found int) {
	for i := range n {
		x.path.Observe(x.connection())
		if _, ok := x.path.Policer.Limit(); ok && found == 0 {
			found = i + 1
		}
	}
	return found
}

func TestPolicerIsFound(t *testing.T) {
	for name, change := range map[string]func(*simulated){
		"cubic, which leaves a quarter": func(*simulated) {},
		"bbr, near the limit":           func(x *simulated) { x.free = 0.95 },
		"with other losses":             func(x *simulated) { x.loss = 0.0001 },
		"3 s long":                      func(x *simulated) { x.seconds = 3 },
		"with a hold-out":               func(x *simulated) { x.holdOut = 0.1 },
		"three at a time":               func(x *simulated) { x.flows = 3 },
		"5 Mbit/s":                      func(x *simulated) { x.policer, x.bucket = 5e6, 20e3 },
	} {
		for seed := range uint64(20) {
			x := newSimulated(seed, func(x *simulated) { x.policer, x.bucket = 48e6, 100e3; change(x) })
			most := 10
			if x.holdOut > 0 || x.flows > 1 {
				most = 20
			}
			found := x.run(40)
			limit, ok := x.path.Policer.Limit()
			if found == 0 || found > most || !ok {
				t.Errorf("%s: seed %d: found after %d connections, now %+v", name, seed, found, x.path.Policer)
				continue
			}
			// A bucket lets connections exceed the rate by its size over their duration.
			if at := float64(limit) * 8; at < 0.9*x.policer || at > 1.02*(x.policer+8*x.bucket/x.seconds) {
				t.Errorf("%s: seed %d: limit %.1f Mbit/s of %.1f", name, seed, at/1e6, x.policer/1e6)
			}
			lost, sent := 0., 0.
			for range 20 {
				s := x.connection()
				if x.path.Observe(s); s.MaxPacingRate != 0 {
					lost, sent = lost+float64(s.Lost), sent+float64(s.DataSegsOut)
				}
			}
			if lost > 0.003*sent {
				t.Errorf("%s: seed %d: later %.0f of %.0f packets were lost", name, seed, lost, sent)
			}
		}
	}
}

// A limit that was found stays known, also if connections without pacing reach less than half of it.
func TestPolicerOfTwiceTheRate(t *testing.T) {
	found := 0
	for seed := range uint64(20) {
		x := newSimulated(seed, func(x *simulated) { x.policer, x.bucket, x.free = 48e6, 100e3, 0.45 })
		if x.run(40) == 0 {
			continue
		}
		found++
		if x.run(40); x.path.Policer.State != PolicerFound {
			t.Errorf("seed %d: given up: %+v", seed, x.path.Policer)
		}
	}
	if found == 0 {
		t.Error("none was found")
	}
}

// One connection whose packets the host delayed, or sent all at once after a pause, does not end the
// search.
func TestPolicerIsFoundBesideADelay(t *testing.T) {
	for name, meet := range map[string]func(*tcp.Sample){
		"delayed":             func(s *tcp.Sample) { s.LossRTT = 2 * s.MinRTT },
		"sent after a pause":  func(s *tcp.Sample) { s.Lost += s.DataSegsOut / 25 },
		"delayed and dropped": func(s *tcp.Sample) { s.LossRTT, s.Lost = 2*s.MinRTT, s.Lost+s.DataSegsOut/25 },
	} {
		for delayed := range 8 {
			x := newSimulated(5, func(x *simulated) { x.policer, x.bucket = 48e6, 100e3 })
			paced := 0
			for range 10 {
				s := x.connection()
				if s.MaxPacingRate != 0 {
					if paced == delayed {
						meet(s)
					}
					paced++
				}
				x.path.Observe(s)
			}
			if _, ok := x.path.Policer.Limit(); !ok {
				t.Errorf("paced connection %d was %s: no limit after 10: %+v", delayed, name, x.path.Policer)
			}
		}
	}
}

// Losses that do not depend on the rate, and those of a queue, are not a policer's.
func TestNoPolicer(t *testing.T) {
	for name, change := range map[string]func(*simulated){
		"1 %":                             func(x *simulated) { x.loss = 0.01 },
		"2 %":                             func(x *simulated) { x.loss = 0.02 },
		"5 %":                             func(x *simulated) { x.loss = 0.05 },
		"2 % before a link":               func(x *simulated) { x.loss, x.link, x.queue = 0.02, 4e6, 1.3 },
		"a queue":                         func(x *simulated) { x.link, x.queue = 50e6, 2 },
		"a queue of a tenth of a round":   func(x *simulated) { x.link, x.queue = 50e6, 1.1 },
		"losses, three at a time":         func(x *simulated) { x.loss, x.flows = 0.02, 3 },
		"short connections, many losses":  func(x *simulated) { x.loss, x.seconds = 0.05, 0.3 },
		"losses of connections of a min.": func(x *simulated) { x.loss, x.seconds = 0.01, 20 },
	} {
		paced := 0
		for seed := range uint64(20) {
			x := newSimulated(seed, change)
			for range 300 {
				s := x.connection()
				if x.path.Observe(s); s.MaxPacingRate != 0 {
					paced++
				}
				if limit, ok := x.path.Policer.Limit(); ok {
					t.Errorf("%s: seed %d: a limit of %.1f Mbit/s: %+v", name, seed, float64(limit)*8/1e6, x.path.Policer)
					break
				}
			}
		}
		t.Logf("%s: %.1f%% of the connections were paced", name, float64(paced)/60)
	}
}

// Losses that end by themselves while connections are paced are not a policer's.
func TestLossesThatEnd(t *testing.T) {
	for seed := range uint64(50) {
		x := newSimulated(seed, func(x *simulated) { x.loss = 0.02 })
		for n := 0; x.path.Policer.State != PolicerSuspected; n++ {
			if x.run(1); n > 100 {
				t.Fatalf("seed %d: no pacing test after %d connections with losses: %+v", seed, n, x.path.Policer)
			}
		}
		x.loss, x.policer, x.bucket, x.free = 0, 1e9, 1e9, 0.1
		if found := x.run(40); found != 0 {
			t.Errorf("seed %d: found a limit after %d connections without losses: %+v", seed, found, x.path.Policer)
		}
	}
}

// A limit that changes is followed, and one that is gone is forgotten. The pause before a known
// limit is tried again grows.
func TestPolicerThatChanges(t *testing.T) {
	x := newSimulated(1, func(x *simulated) { x.policer, x.bucket = 48e6, 100e3 })
	x.run(30)
	limitIs := func(want float64, what string) {
		t.Helper()
		if limit, ok := x.path.Policer.Limit(); !ok || math.Abs(float64(limit)*8/want-1) > 0.1 {
			t.Errorf("%s: limit %.1f Mbit/s, %v, want %.1f: %+v", what, float64(limit)*8/1e6, ok, want/1e6, x.path.Policer)
		}
	}
	limitIs(48e6, "at first")
	x.policer = 40e6
	x.run(200)
	limitIs(40e6, "lower")
	x.policer = 80e6
	x.run(3600)
	limitIs(80e6, "higher")
	if x.path.Policer.Retry <= 2*leastReprobe {
		t.Errorf("after an hour it is tried again every %d s", x.path.Policer.Retry)
	}
	x.policer, x.link, x.queue = 0, 1e9, 2
	x.run(4 * 3600)
	if _, ok := x.path.Policer.Limit(); ok || x.path.Policer.Pace != 0 {
		t.Errorf("the limit is gone: %+v", x.path.Policer)
	}
}

// A limit that was found is known no more if it rises or falls a lot. However long it was known, the search for the new one
// begins after leastRetry, and the new one is tried again after leastReprobe.
func TestPolicerThatChangesALot(t *testing.T) {
	for _, by := range []float64{3, 0.2} {
		x := newSimulated(6, func(x *simulated) { x.policer, x.bucket = 48e6, 100e3 })
		p := &x.path.Policer
		for p.Retry != mostRetry {
			x.run(1)
		}
		x.policer, x.bucket = by*x.policer, by*x.bucket
		for n := 0; p.State == PolicerFound; n++ {
			if x.run(1); n > 2*mostRetry {
				t.Fatalf("times %g: the old limit is still in use: %+v", by, *p)
			}
		}
		gone := x.now
		for p.State != PolicerFound || p.RetryAt == 0 {
			if x.run(1); x.now-gone > (leastRetry+30)*1e9 {
				t.Fatalf("times %g: nothing found %v after the old limit was given up: %+v", by, time.Duration(x.now-gone), *p)
			}
		}
		if limit, _ := p.Limit(); math.Abs(float64(limit)*8/x.policer-1) > 0.1 || p.RetryAt-x.now > leastReprobe*1e9 {
			t.Errorf("times %g: at %d, limit %+v", by, x.now, *p)
		}
	}
}

// A limit that is found after searches in vain, however many, is tried again after leastReprobe.
func TestPolicerAfterSearchesInVain(t *testing.T) {
	x := newSimulated(7, func(x *simulated) { x.loss = 0.02 })
	p := &x.path.Policer
	for p.Retry != mostRetry {
		x.run(1)
	}
	x.loss, x.policer, x.bucket = 0, 48e6, 100e3
	for n := 0; p.State != PolicerFound || p.RetryAt == 0; n++ {
		if x.run(1); n > 2*mostRetry {
			t.Fatalf("no limit was found: %+v", *p)
		}
	}
	if p.RetryAt-x.now > leastReprobe*1e9 {
		t.Errorf("tried again in %v: %+v", time.Duration(p.RetryAt-x.now), *p)
	}
}

// leastOf has the connections of x paced at 1 Mbit/s or more only, and be long enough to show such rates.
func leastOf(x *simulated) { x.path.Policer.Least, x.seconds, x.bucket = 125_000, 20, 10e3 }

// A limit just above the least pacing rate is found, also if connections without pacing are slower than that.
func TestPolicerNearTheLeastRate(t *testing.T) {
	for seed := range uint64(20) {
		x := newSimulated(seed, func(x *simulated) { leastOf(x); x.policer = 1.2e6 })
		found := x.run(40)
		if limit, ok := x.path.Policer.Limit(); found == 0 || found > 10 || !ok || limit < 125_000 || limit > 155_000 {
			t.Errorf("seed %d: found after %d connections, now %+v", seed, found, x.path.Policer)
		}
	}
	x := newSimulated(1, func(x *simulated) { leastOf(x); x.policer = 1.01e6 })
	if x.run(300); x.path.Policer.State != PolicerFound || x.path.Policer.Pace < 125_000 {
		t.Errorf("a limit 1%% above the least rate: %+v", x.path.Policer)
	}
}

// The search for a limit below the least pacing rate ends, and the next limit above it is found.
func TestPolicerBelowTheLeastRate(t *testing.T) {
	for name, before := range map[string]float64{"from the beginning": 0, "after a higher one": 1.5e6} {
		for seed := range uint64(20) {
			x := newSimulated(seed, func(x *simulated) { leastOf(x); x.policer = before })
			if before != 0 {
				if x.run(20) == 0 {
					t.Fatalf("%s: seed %d: %+v", name, seed, x.path.Policer)
				}
			}
			x.policer = 0.8e6
			paced := 0
			for range 1000 {
				s := x.connection()
				if x.path.Observe(s); s.MaxPacingRate != 0 {
					paced++
				}
				if p := &x.path.Policer; p.Pace != 0 && p.Pace < p.Least {
					t.Fatalf("%s: seed %d: %+v", name, seed, *p)
				}
			}
			if paced > 100 {
				t.Errorf("%s: seed %d: %d of 1000 connections were paced: %+v", name, seed, paced, x.path.Policer)
			}
			x.policer = 20e6
			x.run(2*mostRetry/20 + 10)
			if limit, ok := x.path.Policer.Limit(); !ok || math.Abs(float64(limit)*8/20e6-1) > 0.1 {
				t.Errorf("%s: seed %d: later, %.1f Mbit/s of 20: %+v", name, seed, float64(limit)*8/1e6, x.path.Policer)
			}
		}
	}
}

// A search at a rate that connections are not paced at ends: below the least, as of a time when the bound was lower, and
// above the greatest that can be set.
func TestSearchAtARateOfNoConnection(t *testing.T) {
	for name, c := range map[string]struct {
		pace uint32
		ends bool
	}{
		"below the least":      {124_999, true},
		"the least":            {125_000, false},
		"the greatest":         {MostPacingRate, false},
		"above the greatest":   {MostPacingRate + 1, true},
		"no search, no pacing": {0, false},
	} {
		x := newSimulated(1, leastOf)
		p := &x.path.Policer
		p.State, p.Pace = PolicerSuspected, c.pace
		if x.path.Observe(bulk(x.now)); (p.State == NoPolicer) != c.ends || (p.RetryAt > x.now) != c.ends || p.Least != 125_000 {
			t.Errorf("%s: %+v", name, *p)
		}
	}
}

// A path that loses packets at every rate is tried again ever more rarely.
func TestPacingTestsOfLossyPathsBecomeRare(t *testing.T) {
	x := newSimulated(2, func(x *simulated) { x.loss = 0.02 })
	paced := [2]int{}
	for i := range 2 * 3600 {
		s := x.connection()
		if x.path.Observe(s); s.MaxPacingRate != 0 {
			paced[i/3600]++
		}
	}
	if paced[0] == 0 || paced[1] > 30 {
		t.Errorf("%d and then %d of 3600 connections were paced", paced[0], paced[1])
	}
}

// Connections that another limit paces, and those that began before the pacing test, are excluded.
func TestConnectionsOutsideThePacingTest(t *testing.T) {
	x := newSimulated(3, func(x *simulated) { x.policer, x.bucket = 48e6, 100e3 })
	for x.path.Policer.State != PolicerSuspected {
		x.run(1)
	}
	was := x.path.Policer
	for name, change := range map[string]func(s *tcp.Sample){
		"another rate":    func(s *tcp.Sample) { s.MaxPacingRate /= 2 },
		"a higher rate":   func(s *tcp.Sample) { s.MaxPacingRate *= 2 },
		"before":          func(s *tcp.Sample) { s.Duration += 10 * time.Second },
		"without pacing":  func(s *tcp.Sample) { s.MaxPacingRate = 0 },
		"few packets":     func(s *tcp.Sample) { s.DataSegsOut, s.Lost = 50, 0 },
		"far from filled": func(s *tcp.Sample) { s.BytesAcked /= 3 },
		"not connected":   func(s *tcp.Sample) { s.Kind = tcp.KindFailedConnect },
	} {
		s := x.connection()
		change(s)
		if x.path.Observe(s); x.path.Policer != was {
			t.Errorf("%s: %+v, was %+v", name, x.path.Policer, was)
		}
	}
}

func TestPolicerIsStored(t *testing.T) {
	x := newSimulated(4, func(x *simulated) { x.policer, x.bucket = 48e6, 100e3 })
	x.run(15)
	text, err := json.Marshal(x.path)
	if err != nil {
		t.Fatal(err)
	}
	var back Path
	if err := json.Unmarshal(text, &back); err != nil || back != x.path {
		t.Errorf("%s: read back %+v: %v", text, back, err)
	}
	if _, ok := back.Policer.Limit(); !ok || back.Policer.State != PolicerFound {
		t.Errorf("%+v", back.Policer)
	}
}

// A rate at which so few packets are lost that they do not count is too fast if connections are
// no faster than with a lower one: a congestion control responds to each loss.
func TestHigherRateMustBeReached(t *testing.T) {
	x := newSimulated(5, func(x *simulated) { x.policer, x.bucket = 48e6, 100e3 })
	x.run(30)
	p := &x.path.Policer
	p.Clean, p.CleanReached, p.Excess, p.RetryAt = 5_800_000, 5_700_000, 6_400_000, 0
	for _, c := range []struct {
		reached float64
		clean   uint32
	}{{5_500_000, 5_800_000}, {5_900_000, 6_000_000}} {
		q := *p
		q.try(6_000_000, x.now)
		x.now += 3e9
		q.observe(&tcp.Sample{Kind: tcp.KindClose, At: x.now, Duration: 2e9, Busy: 2e9, BytesAcked: uint64(2 * c.reached), DataSegsOut: 7600, Lost: 6, MinRTT: 20_000,
			MaxPacingRate: 6_000_000, LossRTT: 20_400, Flows: 1}, x.now)
		if q.Clean != c.clean && q.Clean != scaled(c.clean, settledMargin) || c.clean < 6_000_000 && q.Excess != 6_000_000 {
			t.Errorf("reached %.0f: %+v", c.reached, q)
		}
	}
}
