package link

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestCheck(t *testing.T) {
	for want, s := range map[string]Spec{
		"":                  {},
		"loss":              {Loss: 1.5},
		"reorder":           {Reorder: 0.1},
		"delay":             {Delay: -1},
		"jitter":            {Delay: ms, Jitter: 2 * ms},
		"bursts: to good":   {Bursts: Bursts{ToGood: math.NaN()}},
		"rate":              {Rate: 1},
		"queue: requires":   {Queue: Queue{Packets: 10}},
		"ecn":               {ECN: 10_000},
		"queue: 1000":       {Rate: 1e6, Queue: Queue{Bytes: 1000}},
		"queue: 20000":      {Rate: 1e6, Queue: Queue{Bytes: 20_000}, Offload: true},
		"queue: 100000":     {Rate: 1e6, Queue: Queue{Packets: 100_000}},
		"queue: 4000000000": {Rate: 10e9, Queue: Queue{Bytes: 4e9}},
		"queue: 99221505":   {Rate: 10e9, Queue: Queue{Bytes: 65536*1514 + 1}, Offload: true},
		"queue: at this":    {Rate: 1e5, Queue: Queue{Bytes: 99e6}},
		"policer: rate":     {Policer: Policer{Burst: 10_000}},
		"policer: burst":    {Policer: Policer{Rate: 1e6, Burst: 100}},
		"delay: 6m0s":       {Delay: 6 * time.Minute},
		"rate: 2000000000":  {Rate: 200e9},
	} {
		err := s.Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%+v: error is %v, want %q", s, err, want)
		}
	}
	full := Spec{Delay: 10 * ms, Jitter: ms, Reorder: 0.01, Loss: 1, Bursts: Bursts{1, 1, 1, 1}, Rate: 1e9,
		Queue: Queue{Bytes: 1e6, Packets: 100}, ECN: 1000, Policer: Policer{1e6, 1e6}, Offload: true}
	if err := full.Check(); err != nil {
		t.Error(err)
	}
}

func TestString(t *testing.T) {
	for want, s := range map[string]Spec{
		"perfect":               {},
		"perfect, offloads on":  {Offload: true},
		"10 ms":                 {Delay: 10 * ms},
		"150 µs ± 50 µs":        {Delay: 150 * time.Microsecond, Jitter: 50 * time.Microsecond},
		"0.1 % loss":            {Loss: 0.001},
		"2.5 % loss in bursts":  {Bursts: Bursts{ToBad: 0.05, ToGood: 0.95, LossBad: 0.5}},
		"8 kbit/s, queue 64 kB": {Rate: 8000, Queue: Queue{Bytes: 64_000}},
		"200 Mbit/s, 10 ms ± 2 ms, 1 % loss, queue 500 kB": {Rate: 200e6, Delay: 10 * ms, Jitter: 2 * ms, Loss: 0.01,
			Queue: Queue{Bytes: 500_000}},
		"1.5 Gbit/s, 1.2 s, 10 % reordered, queue 100 packets, ECN from 30 kB, policed to 1 Gbit/s, burst 1 MB": {
			Rate: 1.5e9, Delay: 1200 * ms, Reorder: 0.1, Queue: Queue{Packets: 100}, ECN: 30_000, Policer: Policer{1e9, 1e6}},
	} {
		if got := s.String(); got != want {
			t.Errorf("String is %q, want %q", got, want)
		}
	}
}

func TestRoom(t *testing.T) {
	for _, c := range []struct {
		s     Spec
		room  Queue
		delay time.Duration
	}{
		{Spec{}, Queue{}, 0},
		{Spec{Rate: 100e6}, Queue{Bytes: 1_250_000}, 100 * ms},
		{Spec{Rate: 100e9}, Queue{Bytes: 99_221_504}, 7937720 * time.Nanosecond},
		{Spec{Rate: 1e6}, Queue{Bytes: 65_536}, 524288 * time.Microsecond},
		{Spec{Rate: 20e6, Queue: Queue{Packets: 1000}}, Queue{Packets: 1000}, 605600 * time.Microsecond},
		{Spec{Rate: 8e6, Queue: Queue{Packets: 1000, Bytes: 10_000}}, Queue{Bytes: 10_000, Packets: 1000}, 10 * ms},
		{Spec{Rate: 8e6, Queue: Queue{Packets: 10, Bytes: 1e6}}, Queue{Bytes: 1e6, Packets: 10}, 15140 * time.Microsecond},
	} {
		if room, delay := c.s.Room(), c.s.QueueDelay(); room != c.room || delay != c.delay {
			t.Errorf("%s: room %+v, delay %s, want %+v, %s", c.s, room, delay, c.room, c.delay)
		}
	}
}

func TestLossShare(t *testing.T) {
	for want, s := range map[float64]Spec{
		0:     {},
		0.01:  {Loss: 0.01},
		0.05:  {Bursts: Bursts{ToBad: 0.1, ToGood: 0.9, LossBad: 0.5}},
		0.055: {Bursts: Bursts{ToBad: 0.5, ToGood: 0.5, LossBad: 0.1, LossGood: 0.01}},
		0.2:   {Bursts: Bursts{LossGood: 0.2, LossBad: 1}}, // never bad
		0.75:  {Loss: 0.5, Bursts: Bursts{LossGood: 0.5}},
	} {
		if got := s.LossShare(); math.Abs(got-want) > 1e-9 {
			t.Errorf("%+v: loses %v, want %v", s, got, want)
		}
	}
}

func TestBackendFor(t *testing.T) {
	both := Spec{Rate: 1e6, Queue: Queue{Bytes: 1e6, Packets: 10}}
	if got, err := Auto.For(Spec{}, both); got != Emulator || err != nil {
		t.Errorf("Auto for what netem cannot do is %s, %v", got, err)
	}
	if _, err := Netem.For(both); err == nil {
		t.Error("netem does what it cannot do")
	}
	if _, err := Netem.For(Spec{Rate: 1e6, Delay: ms, Reorder: 0.5}); err == nil {
		t.Error("netem does what it cannot do")
	}
	if got, err := Emulator.For(both); got != Emulator || err != nil {
		t.Errorf("Emulator.For is %s, %v", got, err)
	}
	if _, err := Backend("tbf").For(); err == nil {
		t.Error("the unknown backend tbf was accepted")
	}
}

func TestCountersSub(t *testing.T) {
	before := Counters{Passed: 10, Lost: 2, LostBurst: 1, Policed: 1, Overflowed: 3, QueueMax: 7, Failed: 1, Late: 1}
	after := Counters{Passed: 90 + 10, Lost: 10, LostBurst: 3, Policed: 2, Overflowed: 4, QueueMax: 9, Failed: 1, Late: 3}
	d := after.Sub(before)
	if d.Passed != 90 || d.dropped() != 8+2+1+1 || d.QueueMax != 9 || d.Failed != 0 || d.Late != 2 {
		t.Errorf("difference is %+v", d)
	}
	if got, want := d.lossShare(), 10.0/101; got != want {
		t.Errorf("loss share is %v, want %v", got, want)
	}
}

// dropped is the number of packets dropped as the Spec asks.
func (c Counters) dropped() uint64 { return c.Lost + c.LostBurst + c.Policed + c.Overflowed }

// lossShare is the share of packets that Loss and Bursts dropped, of those that
// reached them.
func (c Counters) lossShare() float64 {
	lost := c.Lost + c.LostBurst
	return float64(lost) / float64(max(1, c.Passed+c.Policed+lost))
}
