package link

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// A new policer starts with a bucket of its own, empty at worst, whatever the previous
// one dropped.
func TestRootSetPolicer(t *testing.T) {
	a, b := newPair(t)
	const payload = 958 // frames of 1000 bytes
	d := shape(t, a, b, Spec{Policer: Policer{Rate: 1e6, Burst: 1_000_000}}, Auto)
	stream(t, a, b, 2000, payload, 0, nil) // empties a bucket of 8 s
	must(t, d.Set(Spec{Policer: Policer{Rate: 100e6, Burst: 600_000}}))
	if all := stream(t, a, b, 500, payload, time.Millisecond, nil); len(all) < 400 {
		t.Errorf("%d of 500 packets at 8 Mbit/s passed a policer of 100 Mbit/s", len(all))
	}
}

// A channel in the bad state turns good when bursts are switched off.
func TestRootSetBursts(t *testing.T) {
	a, b := newPair(t)
	d := shape(t, a, b, Spec{Bursts: Bursts{ToBad: 1, ToGood: 1e-9, LossBad: 1}}, Auto)
	if all := stream(t, a, b, 100, 18, 0, nil); len(all) > 1 {
		t.Errorf("%d of 100 packets passed a channel that is bad from the second on", len(all))
	}
	must(t, d.Set(Spec{Bursts: Bursts{LossGood: 0.5, LossBad: 1}}))
	if all := stream(t, a, b, 2000, 18, 0, nil); !about(float64(len(all)), 1000, 0.15) {
		t.Errorf("%d of 2000 packets passed a channel that loses half", len(all))
	}
	must(t, d.Set(Spec{Bursts: Bursts{ToBad: 1e-9, ToGood: 1e-9, LossBad: 1}}))
	if all := stream(t, a, b, 100, 18, 0, nil); len(all) != 100 {
		t.Errorf("%d of 100 packets passed a channel that is good", len(all))
	}
}

// The channel changes state with lost packets too.
func TestRootBurstsBesideLoss(t *testing.T) {
	a, b := newPair(t)
	d := shape(t, a, b, Spec{Loss: 1, Bursts: Bursts{ToBad: 1, ToGood: 1e-9, LossBad: 1}}, Auto)
	stream(t, a, b, 10, 18, 0, nil)
	must(t, d.Set(Spec{Bursts: Bursts{ToBad: 1, ToGood: 1e-9, LossBad: 1}}))
	if all := stream(t, a, b, 100, 18, 0, nil); len(all) != 0 {
		t.Errorf("%d of 100 packets passed a channel that went bad while all was lost", len(all))
	}
}

// Packets that wait when the rate changes are served at the new rate from then on, and
// later packets after them; the delay stays as it was. No packet arrives earlier.
func TestRootSetRate(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		setRate(t, backend, func(what string, early, _, most time.Duration) {
			between(t, what+": of 10 packets 9 are early by", early, 0, most)
		})
	})
}

func TestMeasureSetRate(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		onBackends(t, func(t *testing.T, backend Backend) {
			setRate(t, backend, func(what string, _, late, most time.Duration) {
				testenv.AtMost(m, fmt.Sprintf("%s, %s: of 10 packets 9 are late by", backend, what), late, most)
			})
		})
	})
}

// setRate passes to judge by how much nine of ten packets are early or late at most,
// and the tolerance for this machine.
func setRate(t *testing.T, backend Backend, judge func(what string, early, late, most time.Duration)) {
	a, b := newPair(t)
	const frame = 8 * minFrame
	slack := slack(t)
	rates := [][2]float64{{4e6, 40e6}, {40e6, 10e6}}
	if slack == emulated {
		rates = [][2]float64{{1e6, 4e6}, {4e6, 1e6}}
	}
	d := shape(t, a, b, Spec{}, backend)
	for _, rate := range rates {
		s := Spec{Delay: 20 * ms, Rate: uint64(rate[0]), Queue: Queue{Packets: 2000}}
		must(t, d.Set(s))
		begin := time.Now()
		var from, to float64                // the rate changes between these times
		count := 2 * int(0.2*rate[0]/frame) // half of them take 0.2 s at the first rate
		all := streamAll(t, a, b, count, fullPayload, 0, func() error {
			time.Sleep(time.Until(begin.Add(100 * ms)))
			s.Rate = uint64(rate[1])
			from = time.Since(begin).Seconds()
			err := d.Set(s)
			to = time.Since(begin).Seconds()
			return err
		})
		var early, late []time.Duration
		for i, f := range all {
			bits := float64((i + 1) * frame)
			want := func(changed float64) time.Duration {
				seconds := bits / rate[0]
				if seconds > changed {
					seconds = changed + (bits-changed*rate[0])/rate[1]
				}
				return s.Delay + time.Duration(seconds*1e9)
			}
			got, low, high := f.at.Sub(begin), min(want(from), want(to)), max(want(from), want(to))
			early, late = append(early, max(0, low-got)), append(late, max(0, got-high))
		}
		slices.Sort(early)
		slices.Sort(late)
		// The bucket of tbf holds one frame and at most 10 ms at the rate.
		most := 12*ms + 2*slack + time.Duration(2*frame/min(rate[0], rate[1])*1e9)
		judge(fmt.Sprintf("%.0f to %.0f bit/s", rate[0], rate[1]), early[len(early)*9/10], late[len(late)*9/10], most)
	}
	sane(t, d)
}

// A queue limited by bytes may admit more small packets than the emulator's ring
// holds: those count as failures of the emulation. Without a rate none waits any longer.
func TestRootSetNoRate(t *testing.T) {
	a, b := newPair(t)
	d := shape(t, a, b, Spec{Rate: 3e6, Queue: Queue{Bytes: maxQueue}}, Emulator)
	slack, count := slack(t), maxWaiting+100_000
	if slack == emulated { // so many packets would take a minute there, and not fill the ring
		count = 2000
	}
	var set time.Time
	drops, sent := backlogDrops(t), 0
	all := exchange(t, a, b, count, func(s *sender) error {
		for ; sent < count; sent++ { // until the ring is full
			if sent > maxWaiting && sent%1000 == 0 && counters(t, d).Failed > 0 {
				break
			}
			if err := s.send(sent, make([]byte, 18), 18); err != nil {
				return err
			}
		}
		set = time.Now()
		return d.Set(Spec{})
	})
	between(t, "what waited for the rate came in", time.Since(set), 0, 20*time.Second+100*slack)
	c := counters(t, d)
	// The hosts send some packets of their own, which may fail too.
	if missing := sent - len(all) - int(c.Failed); missing < -5 || missing > drops() || c.dropped() > 0 {
		t.Errorf("%d of %d packets arrived, counted as %+v", len(all), sent, c)
	}
	if c.Failed == 0 && slack < emulated {
		t.Error("the ring was never full: the test did not reach the case")
	}
}

// Close releases all packets that wait.
func TestRootCloseReleases(t *testing.T) {
	a, b := newPair(t)
	d, err := Shape(Ends{a, b}, Spec{Delay: time.Minute}, Emulator)
	must(t, err)
	const count = 60_000
	drops := backlogDrops(t)
	all := exchange(t, a, b, count, func(s *sender) error {
		for i := range count {
			if err := s.send(i, make([]byte, 18), 18); err != nil {
				return err
			}
		}
		return d.Close()
	})
	must(t, complete(all, count-drops()))
}
