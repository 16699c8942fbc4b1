package bigtcp

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

func TestValuesAreRaisedAndRestored(t *testing.T) {
	before := Values{rtnetlink.Sizes{GSO: 65536, GRO: 300000, GSO4: 65536, GRO4: 50000}, 1500}
	given := Goal{Size: Size, MTU6: 1492}.Of(before)
	if want := (Values{rtnetlink.Sizes{GSO: Size, GRO: 300000, GSO4: Size, GRO4: Size}, 1492}); given != want {
		t.Errorf("raised to %+v", given)
	}
	if back := Restored(given, given, before); back != before {
		t.Errorf("back to %+v", back)
	}
	now := given
	now.GSO4, now.MTU6 = 100000, 1300 // by somebody else
	want := before
	want.GSO4, want.MTU6 = 100000, 1300
	if back := Restored(now, given, before); back != want {
		t.Errorf("somebody else's value: back to %+v", back)
	}
	small := before
	small.GRO, small.MTU6 = 65536, 1280
	if got := (Goal{Size: Size, MTU6: 1492, Forwards: true}).Of(small); got.GRO != 65536 || got.GRO4 != Size || got.MTU6 != 1280 {
		t.Errorf("a device that forwards: %+v", got)
	}
	small.MTU6 = 0
	if got := (Goal{Size: Size, MTU6: 1492}).Of(small); got.MTU6 != 0 {
		t.Errorf("a device without IPv6: %+v", got)
	}
}

func TestPodMTU(t *testing.T) {
	host := rtnetlink.Link{MTU: 1500}
	if p := (&Path{}); p.PodMTU(host) != 1492 {
		t.Errorf("without other devices: %d", p.PodMTU(host))
	}
	p := &Path{}
	p.atMost(9000)
	p.atMost(0)
	if p.PodMTU(host) != 1492 {
		t.Errorf("beside a larger one: %d", p.PodMTU(host))
	}
	if p.atMost(1400); p.PodMTU(host) != 1392 {
		t.Errorf("beside a smaller one: %d", p.PodMTU(host))
	}
}
