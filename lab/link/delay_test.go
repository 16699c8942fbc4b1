package link

import (
	"fmt"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

const ms = time.Millisecond

// Two delays of 10 ms give a round trip of at least 20 ms.
func TestRootDelay(t *testing.T) {
	eachWay := Spec{Delay: 10 * ms}
	onBackends(t, func(t *testing.T, backend Backend) {
		for family, all := range roundTrips(t, backend, 21) {
			between(t, family+" least round trip", all[0], 2*(eachWay.Delay-mostEarly(eachWay)), 20*ms+loose)
		}
	})
}

// The round trip exceeds 20 ms by at most 0.5 ms beyond what the machine itself adds:
// two sleeps that end late.
func TestMeasureDelay(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		onBackends(t, func(t *testing.T, backend Backend) {
			late := median(oversleeps(41))
			for family, all := range roundTrips(t, backend, 41) {
				testenv.Between(m, fmt.Sprintf("%s, %s: round trip", backend, family), median(all)-2*late, 20*ms, 20*ms+slack(t)/2)
			}
		})
	})
}

// roundTrips measures round trips of IPv4 and IPv6 over a wire with 10 ms each way,
// shortest first.
func roundTrips(t *testing.T, backend Backend, count int) map[string][]time.Duration {
	t.Helper()
	a, b := newPair(t)
	there := shape(t, a, b, Spec{Delay: 10 * ms}, backend)
	back := shape(t, b, a, Spec{Delay: 10 * ms}, backend)
	all := map[string][]time.Duration{"IPv4": rtts(t, a, b.Addr4.Addr(), count), "IPv6": rtts(t, a, b.Addr6.Addr(), count)}
	sane(t, there)
	sane(t, back)
	return all
}

// Each direction has its own delay: the packets with the least delay show it.
func TestRootDirectionsDiffer(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		there, back := Spec{Delay: 100 * ms}, Spec{Delay: 5 * ms}
		shape(t, a, b, there, backend)
		shape(t, b, a, back, backend)
		between(t, "there", delays(stream(t, a, b, 100, 100, ms, nil))[0], 100*ms-mostEarly(there), 100*ms+loose)
		between(t, "back", delays(stream(t, b, a, 100, 100, ms, nil))[0], 5*ms-mostEarly(back), 90*ms)
	})
}

// Packets far enough apart show the whole range of the jitter; close ones still keep
// their order.
func TestRootJitter(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		s := Spec{Delay: 40 * ms, Jitter: 20 * ms}
		d := shape(t, a, b, s, backend)
		// The probability that none of 40 is in the lower or upper three eighths is 1e-8.
		took := delays(stream(t, a, b, 40, 100, 41*ms, nil))
		between(t, "the least delay", took[0], 20*ms-mostEarly(s), 35*ms+slack(t))
		between(t, "the longest", took[len(took)-1], 45*ms-mostEarly(s), 60*ms+loose)

		together := streamAll(t, a, b, 2000, 100, 100*time.Microsecond, nil)
		// If jitter reordered packets, most of them would be overtaken.
		if n := overtaken(together); n > len(together)/5 {
			t.Errorf("%d of %d packets were overtaken", n, len(together))
		}
		sane(t, d)
	})
}

func TestMeasureJitter(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		onBackends(t, func(t *testing.T, backend Backend) {
			a, b := newPair(t)
			s := Spec{Delay: 10 * ms, Jitter: 4 * ms}
			shape(t, a, b, s, backend)
			slack := slack(t)
			took := delays(stream(t, a, b, 300, 100, 9*ms, nil))
			testenv.Between(m, string(backend)+": median", median(took), 9*ms-mostEarly(s), 11*ms+slack)
			testenv.Between(m, string(backend)+": a twentieth is below", took[len(took)/20], 6*ms-mostEarly(s), 7*ms+slack)
			testenv.Between(m, string(backend)+": a twentieth is above", took[len(took)*19/20], 13*ms-mostEarly(s), 14*ms+5*slack)
			together := stream(t, a, b, 3000, 100, 100*time.Microsecond, nil)
			testenv.AtMost(m, string(backend)+": overtaken of 3000", overtaken(together), 30)
		})
	})
}

// The share that is reordered arrives at once, the rest after the delay.
func TestRootReorder(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		s, d, all := reordered(t, backend, 100*ms)
		ahead, delayed := split(all, s.Delay/2)
		// A packet that overtook but arrived late counts among the others.
		if share := float64(len(ahead)) / float64(len(all)); share < s.Reorder/2 || share > s.Reorder*1.3 {
			t.Errorf("%.3f of packets came at once, want %v", share, s.Reorder)
		}
		between(t, "the others", median(delays(delayed)), s.Delay-mostEarly(s), s.Delay+loose)
		if n := overtaken(all); n < len(delayed)/2 {
			t.Errorf("%d of %d delayed packets were overtaken", n, len(delayed))
		}
		sane(t, d)
	})
}

// Packets that do not overtake keep their order.
func TestMeasureReorder(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		onBackends(t, func(t *testing.T, backend Backend) {
			slack := slack(t)
			s, _, all := reordered(t, backend, 10*ms)
			ahead, delayed := split(all, s.Delay/2)
			testenv.Between(m, string(backend)+": share that overtook", float64(len(ahead))/float64(len(all)), 0.85*s.Reorder, 1.15*s.Reorder)
			testenv.AtMost(m, string(backend)+": overtaken among the others", float64(overtaken(delayed))/float64(len(delayed)), 0.05)
			testenv.AtMost(m, string(backend)+": delay of those that overtook", median(delays(ahead)), slack)
			testenv.Between(m, string(backend)+": of the others", median(delays(delayed)), s.Delay-mostEarly(s), s.Delay+slack)
		})
	})
}

// reordered sends a stream over a link where a fifth of the packets overtakes.
func reordered(t *testing.T, backend Backend, delay time.Duration) (s Spec, d *Direction, all []flight) {
	t.Helper()
	a, b := newPair(t)
	s = Spec{Delay: delay, Reorder: 0.2}
	if backend == Emulator {
		s.Rate = 100e6
	}
	d = shape(t, a, b, s, backend)
	return s, d, streamAll(t, a, b, 3000, 100, 300*time.Microsecond, nil)
}

// split separates packets that took less than a time from the others.
func split(all []flight, at time.Duration) (ahead, delayed []flight) {
	for _, f := range all {
		if f.delay < at {
			ahead = append(ahead, f)
		} else {
			delayed = append(delayed, f)
		}
	}
	return ahead, delayed
}

// changes are Specs that are set on a link one after the other.
var changes = []Spec{
	{Delay: 30 * ms},
	{Delay: 10 * ms, Rate: 50e6},
	{Delay: 20 * ms, Rate: 100e6, ECN: 10_000},
	{},
}

// A change loses no packet, from a bare wire to an impaired one and back, and no later
// packet has a shorter delay than the Spec in force asks.
func TestRootSet(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		var from Spec
		d := shape(t, a, b, from, backend)
		for _, to := range changes {
			all := streamAll(t, a, b, 1000, 100, 500*time.Microsecond, func() error { return d.Set(to) })
			between(t, to.String(), delays(all[len(all)-200:])[0], to.Delay-mostEarly(to), to.Delay+loose)
		}
		sane(t, d)
	})
}

// A change lets no packet overtake another.
func TestMeasureSet(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		onBackends(t, func(t *testing.T, backend Backend) {
			a, b := newPair(t)
			d := shape(t, a, b, Spec{}, backend)
			for _, to := range changes {
				slack := slack(t)
				all := stream(t, a, b, 1000, 100, 500*time.Microsecond, func() error { return d.Set(to) })
				testenv.AtMost(m, fmt.Sprintf("%s, %s: overtaken of 1000", backend, to), overtaken(all), 10)
				testenv.Between(m, fmt.Sprintf("%s, %s: delay", backend, to), median(delays(all[len(all)-200:])), to.Delay-mostEarly(to), to.Delay+slack)
			}
		})
	})
}

// Packets are held only when a Spec needs it.
func TestRootBareWireHasNoQueue(t *testing.T) {
	a, b := newPair(t)
	d := shape(t, a, b, Spec{Loss: 0.01, Policer: Policer{Rate: 10e6, Burst: 10_000}}, Emulator)
	if d.holder != nil {
		t.Error("loss and a policer alone hold packets")
	}
}
