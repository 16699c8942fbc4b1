package estimate

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// crowd is a group of concurrent connections of a path, all with the same measurements.
type crowd struct {
	flows      uint32 // number of connections
	sent, lost uint32 // packets of each connection
	rtt        uint32 // microseconds
	busy       time.Duration
	flags      tcp.Flags
}

// passes gives p the samples of all connections, n times, one second apart.
func (c crowd) passes(p *Path, at int64, n int) int64 {
	for range n {
		at += int64(time.Second)
		for range c.flows {
			p.Observe(&tcp.Sample{Kind: tcp.KindInterval, At: at, Flags: c.flags, Duration: c.busy, Busy: c.busy, Flows: c.flows,
				DataSegsOut: c.sent, Lost: c.lost, SRTT: c.rtt, MinRTT: 2000})
		}
	}
	return at
}

// Ten connections have 640 packets in a queue, at 8 packets a millisecond: round trips of 80 ms
// instead of 2.
var (
	filling = crowd{flows: 10, sent: 800, lost: 8, rtt: 80_000, busy: time.Second}
	clamped = crowd{flows: 10, sent: 800, rtt: 6_000, busy: time.Second}
)

func incastPath() *Path { return &Path{Incast: new(Incast)} }

// The clamp is what the connections deliver in the round-trip time that is aimed at: 8 packets a
// millisecond, 3 times 2 ms and 0.1.
func TestIncastWindow(t *testing.T) {
	p := incastPath()
	at := filling.passes(p, t0, 1)
	if w := p.Incast.Window; w < 48 || w > 49 {
		t.Errorf("window %v, want 8 x 6.1: %+v", w, p.Incast)
	}
	clamped.passes(p, at, 10)
	if w := p.Incast.Window; w < 48 || w > 49 {
		t.Errorf("later, window %v: %+v", w, p.Incast)
	}
}

// When other hosts stop, the connections are faster, and the window follows.
func TestIncastWindowFollowsTheRate(t *testing.T) {
	p := incastPath()
	at := filling.passes(p, t0, 1)
	faster := clamped
	faster.sent *= 3
	faster.passes(p, at, 10)
	if w := p.Incast.Window; w < 140 || w > 150 {
		t.Errorf("window %v, want 24 x 6.1: %+v", w, p.Incast)
	}
}

func TestNoIncast(t *testing.T) {
	with := func(change func(*crowd)) crowd {
		c := filling
		change(&c)
		return c
	}
	for name, c := range map[string]crowd{
		"a connection alone":       with(func(c *crowd) { c.flows = 1; c.sent = 8000 }),
		"no queue":                 with(func(c *crowd) { c.rtt, c.lost = 2500, 0 }),
		"losses without a queue":   with(func(c *crowd) { c.rtt, c.lost = 2500, 20 }),
		"a short queue, no losses": with(func(c *crowd) { c.rtt, c.lost = 10_000, 0 }),
		"the hold-out":             with(func(c *crowd) { c.flags = tcp.FlagHoldOut }),
		"not limited by the path":  with(func(c *crowd) { c.busy = 0 }),
		"too few packets to tell":  with(func(c *crowd) { c.sent = 9 }),
		"connections, not counted": with(func(c *crowd) { c.flows = 0 }),
	} {
		p := incastPath()
		c.passes(p, t0, 30)
		if p.Incast.Window != 0 {
			t.Errorf("%s: %+v", name, p.Incast)
		}
	}
	long := incastPath()
	for range 30 {
		long.Observe(&tcp.Sample{Kind: tcp.KindClose, At: t0, Duration: time.Second, Busy: time.Second, Flows: 10, DataSegsOut: 800, Lost: 8, SRTT: 400_000, MinRTT: 20_000})
	}
	if long.Incast.Window != 0 {
		t.Errorf("a long path: %+v", long.Incast)
	}
	none := &Path{}
	filling.passes(none, t0, 3)
	if none.Incast != nil {
		t.Error("nothing asked for it")
	}
}

// A shallow queue loses packets before round trips are as long as aimed at: then the aim is shorter.
func TestIncastInAShallowQueue(t *testing.T) {
	p := incastPath()
	crowd{flows: 10, sent: 800, lost: 8, rtt: 4000, busy: time.Second}.passes(p, t0, 1)
	if w := p.Incast.Window; w < 22 || w > 23 {
		t.Errorf("window %v, want 8 x 0.7 x 4: %+v", w, p.Incast)
	}
}

// Without a queue for a minute, the clamp ends.
func TestIncastEnds(t *testing.T) {
	p := incastPath()
	at := filling.passes(p, t0, 1)
	idle := clamped
	idle.rtt = 2200
	if at = idle.passes(p, at, 50); p.Incast.Window == 0 {
		t.Error("it ended too early")
	}
	if idle.passes(p, at, 15); p.Incast.Window != 0 {
		t.Errorf("it did not end: %+v", p.Incast)
	}
}

// Samples from which no step is made, with few packets or of the hold-out, do not keep a clamp.
func TestIncastEndsWithoutSteps(t *testing.T) {
	for name, idle := range map[string]crowd{
		"few packets":  {flows: 2, sent: 9, rtt: 2200, busy: time.Second},
		"the hold-out": {flows: 2, sent: 800, rtt: 2200, busy: time.Second, flags: tcp.FlagHoldOut},
	} {
		p := incastPath()
		at := filling.passes(p, t0, 1)
		if at = idle.passes(p, at, 110); p.Incast.Window == 0 {
			t.Errorf("%s: it ended too early", name)
		}
		if at = idle.passes(p, at, 15); p.Incast.Window != 0 {
			t.Errorf("%s: it did not end: %+v", name, p.Incast)
		}
		if filling.passes(p, at, 1); p.Incast.Window == 0 || p.Incast.Since <= at {
			t.Errorf("%s: it did not begin again: %+v", name, p.Incast)
		}
	}
}

// If others fill the queue, so that only these connections get slower, the clamp ends, and is tried
// again later and later.
func TestIncastThatOthersCause(t *testing.T) {
	p := incastPath()
	losing := filling
	losing.sent = 200
	at, began := filling.passes(p, t0, 1), []int64{}
	for range 400 {
		if p.Incast.Window != 0 {
			at = losing.passes(p, at, 1)
			continue
		}
		for p.Incast.Window == 0 {
			at = filling.passes(p, at, 1)
		}
		began = append(began, at)
		if len(began) == 3 {
			break
		}
	}
	if len(began) < 3 || began[1]-began[0] < int64(2*time.Minute) || began[2]-began[1] < int64(4*time.Minute) || p.Incast.Retry > mostRetry {
		t.Errorf("tried again at %v: %+v", began, p.Incast)
	}
}

// A copy is not changed by later samples.
func TestCloneOfAPath(t *testing.T) {
	p := incastPath()
	c := p.Clone()
	if filling.passes(p, t0, 1); c.Incast.Window != 0 || p.Incast.Window == 0 {
		t.Errorf("copy %+v, path %+v", c.Incast, p.Incast)
	}
}
