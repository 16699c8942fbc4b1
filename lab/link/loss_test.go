package link

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

func TestRootLoss(t *testing.T) {
	a, b := newPair(t)
	d := shape(t, a, b, Spec{}, Auto)
	const packets = 60_000
	// The tolerances are 5.2 and 5.1 standard deviations of the expected loss.
	for asked, tolerance := range map[float64]float64{0.02: 0.15, 0.10: 0.063} {
		must(t, d.Set(Spec{Loss: asked}))
		before, drops := counters(t, d), backlogDrops(t)
		got := packets - len(stream(t, a, b, packets, 18, 0, nil)) - drops()
		c := counters(t, d).Sub(before)
		if rel := math.Abs(c.lossShare()-asked) / asked; rel > tolerance {
			t.Errorf("lost %.4f, asked %.4f: %.1f %% off", c.lossShare(), asked, 100*rel)
		}
		// The hosts send some packets of their own.
		if !about(float64(got), float64(c.Lost), 0.02) || c.dropped() != c.Lost {
			t.Errorf("%d of the stream's packets did not arrive: %+v", got, c)
		}
	}
}

// The mean number of consecutive losses is the mean length of the bad state: 1 / ToGood
// packets.
func TestRootBursts(t *testing.T) {
	a, b := newPair(t)
	s := Spec{Bursts: Bursts{ToBad: 0.01, ToGood: 0.25, LossBad: 1}}
	d := shape(t, a, b, s, Auto)
	const packets = 80_000 // some 760 bursts: a tenth of their mean length is three standard deviations
	all := stream(t, a, b, packets, 18, 0, nil)
	var bursts, lost int
	for i := range all[1:] {
		if gap := all[i+1].seq - all[i].seq - 1; gap > 0 {
			bursts++
			lost += gap
		}
	}
	c := counters(t, d)
	t.Logf("lost %.4f, asked %.4f, in bursts of %.2f: %+v", c.lossShare(), s.LossShare(), float64(lost)/float64(bursts), c)
	if !about(c.lossShare(), s.LossShare(), 0.25) {
		t.Errorf("lost %.4f of packets, want %.4f", c.lossShare(), s.LossShare())
	}
	if mean := float64(lost) / float64(bursts); !about(mean, 4, 0.2) {
		t.Errorf("%.2f packets lost in a row, want 4", mean)
	}
	if c.LostBurst == 0 || c.Lost != 0 {
		t.Errorf("counted as %+v", c)
	}
}

func TestRootLossIsOfOneDirection(t *testing.T) {
	a, b := newPair(t)
	there := shape(t, a, b, Spec{Loss: 1}, Auto)
	back := shape(t, b, a, Spec{}, Auto)
	const packets = 500 // a processor's backlog has room for 1000
	if err := complete(stream(t, b, a, packets, 18, 0, nil), packets); err != nil {
		t.Errorf("against the lossy direction %v", err)
	}
	if all := stream(t, a, b, packets, 18, 0, nil); len(all) != 0 {
		t.Errorf("in the lossy direction %d packets arrived", len(all))
	}
	if c := counters(t, there); c.Passed != 0 || c.Lost < packets {
		t.Errorf("in the lossy direction: %+v", c)
	}
	if c := counters(t, back); c.Passed < packets || c.dropped() != 0 {
		t.Errorf("against the lossy direction: %+v", c)
	}
}

// A burst passes up to what the bucket holds; a long stream passes at the policer's
// rate.
func TestRootPolicer(t *testing.T) {
	a, b := newPair(t)
	const payload, burst = 958, 20 // frames of 1000 bytes, of which the bucket holds 20
	d := shape(t, a, b, Spec{Policer: Policer{Rate: 8e6, Burst: burst * 1000}}, Auto)
	began := time.Now()
	all := stream(t, a, b, 400, payload, 0, nil)
	if took := int(time.Since(began)/ms - 2*quiet/ms); len(all) < burst || len(all) > burst+took+1 {
		t.Errorf("of a burst %d packets passed in %d ms, want %d and one for each", len(all), took, burst)
	}
	// Twice the rate for a second: 1000 of 2000 packets pass, plus the full bucket,
	// unless the sender was stalled.
	var s *sender
	all = exchange(t, a, b, 2000, func(own *sender) error {
		s = own
		return s.paced(payload, 500*time.Microsecond, nil)
	})
	want, tokens, last := 0, float64(burst), 0.0
	for i := range s.sent {
		at := float64(s.sent[i].Load()) / 1e6 // each ms adds a packet
		tokens = min(burst, tokens+at-last)
		if last = at; tokens >= 1 {
			tokens--
			want++
		}
	}
	if !about(float64(len(all)), float64(want), 0.1) {
		t.Errorf("%d of 2000 packets passed, want %d", len(all), want)
	}
	if c := counters(t, d); c.Policed == 0 || c.Policed != c.dropped() || c.Policed+c.Passed < 2400 {
		t.Errorf("counted as %+v", c)
	}
}

func TestRootModelFallsBackToClsact(t *testing.T) {
	a, b := newPair(t)
	m, err := newModel(b)
	must(t, err)
	defer m.close()
	if m.how == "tcx" {
		must(t, m.detach())
		must(t, m.attachClsact())
	}
	must(t, m.set(Spec{Loss: 1}.instant()))
	if all := stream(t, a, b, 1000, 18, 0, nil); len(all) != 0 {
		t.Errorf("%d of 1000 packets arrived", len(all))
	}
}

// Close removes everything that Shape added.
func TestRootCloseLeavesNothing(t *testing.T) {
	a, b := newPair(t)
	traces := func() string {
		var all []string
		for _, cmd := range []string{"iptables-legacy -t raw -S", "ip6tables-legacy -t raw -S",
			"tc qdisc show dev eth0", "tc filter show dev eth0 ingress", "cat /proc/self/net/netfilter/nfnetlink_queue",
			"ip -d -o link show dev eth0"} {
			args := strings.Fields(cmd)
			for _, e := range []*struct {
				run func(string, ...string) (string, error)
			}{{a.Host.Run}, {b.Host.Run}} {
				out, err := e.run(args[0], args[1:]...)
				must(t, err)
				// The first qdisc sets a veth's queue length permanently; nothing uses it.
				all = append(all, strings.ReplaceAll(out, " qlen 1000", " "))
			}
		}
		for _, f := range []feature{tso, gso, gro} {
			for _, e := range []Ends{{a, b}, {b, a}} {
				v, err := ethtool(e.From, f.get, 0)
				must(t, err)
				all = append(all, string(rune('0'+v)))
			}
		}
		return strings.Join(all, "\n")
	}
	// The commands themselves create the raw table, so run them once first.
	traces()
	before := traces()
	for _, backend := range []Backend{Emulator, Auto} {
		d, err := Shape(Ends{a, b}, Spec{Delay: 50 * time.Millisecond, Rate: 10e6, Loss: 0.5}, backend)
		must(t, err)
		if traces() == before {
			t.Error("a shaped wire looks like a bare one: the test would not notice leftovers")
		}
		info, err := d.model.objs.LabLink.Info()
		must(t, err)
		id, _ := info.ID()
		stream(t, a, b, 10, 100, 0, nil)
		must(t, d.Close())
		if after := traces(); after != before {
			t.Errorf("%s left\n%s\nof\n%s", d.backend, after, before)
		}
		gone := false
		for range 500 { // the kernel frees it after a grace period
			p, err := ebpf.NewProgramFromID(id)
			if gone = errors.Is(err, os.ErrNotExist); gone {
				break
			}
			p.Close()
			time.Sleep(20 * time.Millisecond)
		}
		if !gone {
			t.Error("the program is still there")
		}
	}
}
