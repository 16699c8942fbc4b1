package link

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestNetemCommands(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		want []string
	}{
		{Spec{Delay: 10 * ms}, []string{"delay 10000.000us rate", "tbf rate 100000000000bit", "bfifo"}},
		{Spec{Delay: 10 * ms, Jitter: time.Microsecond, Reorder: 0.25}, []string{"delay 10000.000us 1.000us reorder 25.000000% rate"}},
		{Spec{Rate: 20e6, Queue: Queue{Packets: 1000}}, []string{"tbf rate 20000000bit burst 6056", "pfifo limit 1000"}},
		{Spec{Rate: 100e6, Queue: Queue{Bytes: 1e6}, ECN: 30_000},
			[]string{"burst 25000", "min 30000 max 30001", "ecn nodrop", "bfifo limit 1000000"}},
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

// A kernel without netem is told by Shape.
func TestRootNoNetem(t *testing.T) {
	a, b := newPair(t)
	d, err := Shape(Ends{a, b}, Spec{Delay: ms}, Netem)
	if want := HasNetem(); !errors.Is(err, want) || (want == nil) != (err == nil) {
		t.Errorf("Shape says %v, HasNetem %v", err, want)
	}
	if d != nil {
		must(t, d.Close())
	}
}
