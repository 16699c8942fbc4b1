package link

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

const ms = time.Millisecond

// Two delays of 10 ms are a round trip of at most 0.5 ms more than what the machine
// adds by itself: two sleeps that end late.
func TestRootDelay(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		there := shape(t, a, b, Spec{Delay: 10 * ms}, backend)
		back := shape(t, b, a, Spec{Delay: 10 * ms}, backend)
		for family, addr := range map[string]netip.Addr{"IPv4": b.Addr4.Addr(), "IPv6": b.Addr6.Addr()} {
			testenv.Again(t, func() error {
				late := median(oversleeps(41))
				all := rtts(t, a, addr, 41)
				t.Logf("%s: round trip %s, %s to %s; a sleep is late by %s", family, median(all), all[0], all[len(all)-1], late)
				most := 20*ms + slack(t)/2 + 2*late
				return outside(family+" round trip", median(all), 20*ms, most)
			})
		}
		sane(t, there)
		sane(t, back)
	})
}

func TestRootDirectionsDiffer(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		there, back := Spec{Delay: 20 * ms}, Spec{Delay: 5 * ms}
		shape(t, a, b, there, backend)
		shape(t, b, a, back, backend)
		testenv.Again(t, func() error {
			slack := slack(t)
			return errors.Join(
				outside("round trip", rtt(t, a, b.Addr4.Addr()), 25*ms, 25*ms+slack),
				outside("there", median(delays(stream(t, a, b, 200, 100, ms, nil))), 20*ms-early(there), 20*ms+slack),
				outside("back", median(delays(stream(t, b, a, 200, 100, ms, nil))), 5*ms-early(back), 5*ms+slack))
		})
	})
}

// Packets far enough apart show the whole of the jitter; close ones keep their
// order none the less.
func TestRootJitter(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		s := Spec{Delay: 10 * ms, Jitter: 4 * ms}
		d := shape(t, a, b, s, backend)
		testenv.OnceMore(t, func() error {
			slack := slack(t)
			took := delays(stream(t, a, b, 300, 100, 9*ms, nil))
			return errors.Join(
				outside("median", median(took), 9*ms-early(s), 11*ms+slack),
				outside("a twentieth of the delays is below", took[len(took)/20], 6*ms-early(s), 7*ms+slack),
				outside("a twentieth of the delays is above", took[len(took)*19/20], 13*ms-early(s), 14*ms+5*slack))
		})
		testenv.Again(t, func() error {
			together := stream(t, a, b, 3000, 100, 100*time.Microsecond, nil)
			must(t, complete(together, 3000))
			return inOrder(together, slack(t))
		})
		sane(t, d)
	})
}

// The share that is reordered comes at once, the rest in order after the delay.
func TestRootReorder(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		s := Spec{Delay: 10 * ms, Reorder: 0.2}
		if backend == Emulator {
			s.Rate = 100e6
		}
		d := shape(t, a, b, s, backend)
		testenv.Again(t, func() error {
			slack := slack(t)
			all := stream(t, a, b, 3000, 100, 300*time.Microsecond, nil)
			must(t, complete(all, 3000))
			var ahead, delayed []flight
			for _, f := range all {
				if f.delay < s.Delay/2 {
					ahead = append(ahead, f)
				} else {
					delayed = append(delayed, f)
				}
			}
			// One that overtook and was late counts among the others.
			tolerance, mixed := 0.15, len(delayed)/20
			if slack == emulated {
				tolerance, mixed = 0.6, len(delayed)
			}
			if share := float64(len(ahead)) / float64(len(all)); !about(share, s.Reorder, tolerance) {
				return fmt.Errorf("%.3f of packets overtook, want %v", share, s.Reorder)
			}
			if n := overtaken(delayed); n > mixed {
				return fmt.Errorf("%d of %d packets that did not overtake were overtaken by such", n, len(delayed))
			}
			return errors.Join(
				outside("those that overtook", median(delays(ahead)), 0, slack),
				outside("the others", median(delays(delayed)), s.Delay-early(s), s.Delay+slack))
		})
		sane(t, d)
	})
}

// No packet is lost or overtaken by a change, from a bare wire to a bad one and
// back, and each meets what is then asked.
func TestRootSet(t *testing.T) {
	onBackends(t, func(t *testing.T, backend Backend) {
		a, b := newPair(t)
		var from Spec
		d := shape(t, a, b, from, backend)
		for _, to := range []Spec{
			{Delay: 30 * ms},
			{Delay: 10 * ms, Rate: 50e6},
			{Delay: 20 * ms, Rate: 100e6, ECN: 10_000},
			{},
		} {
			testenv.Again(t, func() error {
				slack := slack(t)
				must(t, d.Set(from))
				all := stream(t, a, b, 1000, 100, 500*time.Microsecond, func() error { return d.Set(to) })
				must(t, complete(all, 1000))
				return errors.Join(inOrder(all, slack),
					outside(to.String(), median(delays(all[len(all)-200:])), to.Delay-early(to), to.Delay+slack))
			})
			from = to
		}
		sane(t, d)
	})
}

// Packets are only made to wait once some shall.
func TestRootBareWireHasNoQueue(t *testing.T) {
	a, b := newPair(t)
	d := shape(t, a, b, Spec{Loss: 0.01, Policer: Policer{Rate: 10e6, Burst: 10_000}}, Emulator)
	if d.holder != nil {
		t.Error("loss and a policer alone hold packets")
	}
}
