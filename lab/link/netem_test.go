package link

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestNetemCommands(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		want []string
	}{
		{Spec{Delay: 10 * ms}, []string{"delay 10000.000us rate", "tbf rate 100000000000bit", "bfifo"}},
		{Spec{Delay: 10 * ms, Jitter: time.Microsecond, Reorder: 0.25}, []string{"delay 10000.000us 1.000us reorder 25.000000% rate"}},
		{Spec{Rate: 20e6, Queue: Queue{Packets: 1000}}, []string{"tbf rate 20000000bit burst 6514", "pfifo limit 1000"}},
		{Spec{Rate: 10e6}, []string{"tbf rate 10000000bit burst 6056"}},
		{Spec{Rate: 100e3}, []string{"tbf rate 100000bit burst 1639"}},
		{Spec{Rate: 100e6, Queue: Queue{Bytes: 1e6}, ECN: 30_000},
			[]string{"burst 26514", "min 30000 max 30001", "ecn nodrop", "bfifo limit 1000000"}},
	} {
		tree := c.spec.netem("eth0")
		got := strings.Join(tree[:], "")
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: commands\n%slack %q", c.spec, got, want)
			}
		}
	}
}

// Shape reports a kernel without netem.
func TestRootNoNetem(t *testing.T) {
	a, b := newPair(t)
	d, err := Shape(Ends{a, b}, Spec{Delay: ms}, Netem)
	if want := hasNetem(); !errors.Is(err, want) || (want == nil) != (err == nil) {
		t.Errorf("Shape returned %v, hasNetem %v", err, want)
	}
	if d != nil {
		must(t, d.Close())
	}
}

// behaviour is what a link does, as measured.
type behaviour struct {
	roundTrip, wait time.Duration
	rate, loss      float64
}

func measure(t *testing.T, backend Backend) (got behaviour) {
	a, b := newPair(t)
	there := shape(t, a, b, Spec{Delay: 20 * ms}, backend)
	shape(t, b, a, Spec{Delay: 30 * ms}, backend)
	got.roundTrip = rtt(t, a, b.Addr4.Addr())

	s := Spec{Rate: 2e6, Queue: Queue{Bytes: 100_000}}
	must(t, there.Set(s))
	// Without the packets that tbf's bucket let through at once.
	all := stream(t, a, b, 150, fullPayload, 0, nil)[10:]
	got.rate = bitsPerSecond(all)
	got.wait = delays(all)[len(all)-1]

	must(t, there.Set(Spec{Loss: 0.1}))
	before := counters(t, there)
	stream(t, a, b, 20_000, 18, 0, nil)
	got.loss = counters(t, there).Sub(before).lossShare()
	return got
}

// If a kernel has both backends, they do the same.
func TestRootBackendsAgree(t *testing.T) {
	if errors.Is(hasNetem(), errNoNetem) {
		t.Log("this kernel has no netem: make test-vm compares them elsewhere")
		return
	}
	one, two := measure(t, Netem), measure(t, Emulator)
	t.Logf("netem %+v, emulator %+v", one, two)
	if d := (one.roundTrip - two.roundTrip).Abs(); d > 5*ms {
		t.Errorf("round trips differ by %s", d)
	}
	if d := (one.wait - two.wait).Abs(); d > 40*ms {
		t.Errorf("waits at a full queue differ by %s", d)
	}
	if !about(one.rate, two.rate, 0.05) {
		t.Errorf("rates are %.0f and %.0f", one.rate, two.rate)
	}
	if !about(one.loss, two.loss, 0.12) { // 4 standard deviations
		t.Errorf("loss is %.4f and %.4f", one.loss, two.loss)
	}
}

// Whether a kernel has fq is found out by trying, without root's network.
func TestRootHasQdisc(t *testing.T) {
	testenv.Root(t)
	if err := HasQdisc("pfifo"); err != nil {
		t.Errorf("every kernel has pfifo: %v", err)
	}
	if err := HasQdisc("nosuch"); err == nil || !strings.Contains(err.Error(), "CONFIG_NET_SCH_NOSUCH") {
		t.Errorf("no kernel has nosuch: %v", err)
	}
}
