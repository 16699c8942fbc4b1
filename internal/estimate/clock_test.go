package estimate

import (
	"testing"
	"time"
)

// Some time after the clock was set back by hours, a path is measured anew: what was known of it is of a time that is still to come.
func TestClockSetBack(t *testing.T) {
	p := Path{Incast: &Incast{}, Delack: &Delack{}, Peer: &Peer{}}
	incast := p.Incast
	for i := range int64(20) {
		p.Observe(bulk(t0 + i*int64(time.Second)))
	}
	at := t0 - 8*int64(time.Hour)
	for range 60 {
		at += 30 * int64(time.Second)
		s := bulk(at) // by another route
		s.MinRTT, s.SRTT, s.DeliveryRate, s.Lost = 50_000, 60_000, 1_000_000, 0
		p.Observe(s)
	}
	if p.MinRTT.Least() != 50_000 || p.Rate.Greatest() != 1_000_000 {
		t.Errorf("least round-trip time %d us, greatest rate %d", p.MinRTT.Least(), p.Rate.Greatest())
	}
	if p.RTTAt != at || p.Updated != at {
		t.Errorf("measured at %v, %v from now", time.Duration(p.RTTAt-at), time.Duration(p.Updated-at))
	}
	if p.Incast != incast || p.Delack == nil || p.Peer == nil {
		t.Error("what rules ask for is not kept")
	}
	s := bulk(at - int64(30*time.Second)) // late, not another time
	rtts := p.RTTs
	if p.Observe(s); p.RTTs != rtts+1 || p.Updated != at {
		t.Errorf("a late sample: %d of %d, at %v", p.RTTs, rtts, time.Duration(p.Updated-at))
	}
}

// A host that starts with a wrong clock, and sets it right some minutes later, forgets nothing.
func TestClockWrongAtFirst(t *testing.T) {
	var p Path
	for i := range int64(20) {
		p.Observe(bulk(t0 + i*int64(time.Second)))
	}
	rtts, least := p.RTTs, p.MinRTT.Least()
	for i := range int64(10) { // hours apart, twice
		p.Observe(bulk(t0 - 8*int64(time.Hour) + i*int64(time.Minute)))
		p.Observe(bulk(t0 + int64(time.Hour)*i))
	}
	if p.RTTs != rtts+20 || p.MinRTT.Least() != least || p.Updated != t0+9*int64(time.Hour) {
		t.Errorf("%d round-trip times, before %d, least %d us, before %d", p.RTTs, rtts, p.MinRTT.Least(), least)
	}
}
