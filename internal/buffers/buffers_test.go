package buffers

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	t0   = int64(1_700_000_000e9)
	here = uint64(7)
	mib  = uint64(1 << 20)
)

// upload is a connection of 8 s over 200 ms with 2.5 MB in flight, while its congestion window
// would allow 8 MB.
func upload(at int64) *tcp.Sample {
	return &tcp.Sample{Kind: tcp.KindClose, At: at, NetNS: here, Flags: tcp.FlagSndbufMax, Duration: 8 * time.Second, Busy: 8 * time.Second,
		BytesAcked: 100e6, MinRTT: 200_000, SRTT: 200_000, Cwnd: 5800, MSS: 1448}
}

// download is a connection that receives as much.
func download(at int64) *tcp.Sample {
	return &tcp.Sample{Kind: tcp.KindInterval, At: at, NetNS: here, Flags: tcp.FlagRcvbufMax, Duration: 8 * time.Second,
		BytesReceived: 100e6, MinRTT: 200_000, SRTT: 200_000, Cwnd: 10, MSS: 1448}
}

func limits(receive, send uint64) map[uint64]Limits { return map[uint64]Limits{here: {receive, send}} }

// decide decides, and notes the changes as written.
func decide(c *Controller, now int64, current map[uint64]Limits, short bool) []Change {
	changes, _ := c.Decide(now, current, short)
	for _, ch := range changes {
		c.Wrote(ch, now)
	}
	return changes
}

func TestBoundConnectionsRaiseTheirLimit(t *testing.T) {
	for _, which := range []Which{Receive, Send} {
		c := New(64 * mib)
		sample := download
		if which == Send {
			sample = upload
		}
		c.Observe(sample(t0))
		if got := decide(c, t0, limits(4*mib, 4*mib), false); got != nil {
			t.Errorf("%s: one connection: %+v", which.Sysctl(), got)
		}
		c.Observe(sample(t0 + 1e9))
		if got := c.Wanted(t0); len(got) != 1 || got[0] != here {
			t.Errorf("wanted: %v", got)
		}
		got := decide(c, t0+1e9, limits(4*mib, 4*mib), false)
		if len(got) != 1 || got[0].NetNS != here || got[0].Which != which || got[0].From != 4*mib || got[0].To != 8*mib || got[0].Why == "" {
			t.Fatalf("%s: %+v", which.Sysctl(), got)
		}
		// They have the same in flight with twice the limit: that was enough.
		c.Observe(sample(t0 + 9e9))
		c.Observe(sample(t0 + 9e9))
		if got := decide(c, t0+9e9, limits(8*mib, 8*mib), false); got != nil && which == Send {
			t.Errorf("%s: again: %+v", which.Sysctl(), got)
		}
		if r := c.Raised(); len(r) != 1 || r[0].Original != 4*mib {
			t.Errorf("raised: %+v", r)
		}
	}
}

// A limit of which the connection uses a small part does not bound it.
func TestOtherConnectionsRaiseNothing(t *testing.T) {
	for name, change := range map[string]func(s *tcp.Sample){
		"the congestion window bounds it": func(s *tcp.Sample) { s.Cwnd = 2000 },
		"a short path":                    func(s *tcp.Sample) { s.SRTT, s.MinRTT = 20_000, 20_000 },
		"the buffer has room":             func(s *tcp.Sample) { s.Flags = 0 },
		"no round-trip time":              func(s *tcp.Sample) { s.MinRTT = 0 },
		"no time":                         func(s *tcp.Sample) { s.Busy, s.Duration = 0, 0 },
		"a connect that failed":           func(s *tcp.Sample) { s.Kind = tcp.KindFailedConnect },
	} {
		for _, sample := range []func(int64) *tcp.Sample{upload, download} {
			c := New(64 * mib)
			for i := range int64(5) {
				s := sample(t0 + i)
				if change(s); name == "the congestion window bounds it" && s.Has(tcp.FlagRcvbufMax) {
					continue // its own window does not bound what it receives
				}
				c.Observe(s)
			}
			if got := decide(c, t0, limits(4*mib, 4*mib), false); got != nil {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

func TestLimitsOfRaises(t *testing.T) {
	bound := func(max uint64) *Controller {
		c := New(max)
		c.Observe(upload(t0))
		c.Observe(upload(t0))
		return c
	}
	if got := decide(bound(6*mib), t0, limits(4*mib, 4*mib), false); len(got) != 1 || got[0].To != 6*mib {
		t.Errorf("up to the configured maximum: %+v", got)
	}
	if got := decide(bound(4*mib), t0, limits(4*mib, 4*mib), false); got != nil {
		t.Errorf("at the configured maximum: %+v", got)
	}
	if got := decide(bound(64*mib), t0, limits(4*mib, 2*mib), false); got != nil {
		t.Errorf("an administrator saves memory: %+v", got)
	}
	if got := decide(bound(64*mib), t0, nil, false); got != nil {
		t.Errorf("a limit that cannot be read: %+v", got)
	}
	if got := decide(bound(64*mib), t0+int64(2*time.Minute), limits(4*mib, 4*mib), false); got != nil {
		t.Errorf("evidence of two minutes ago: %+v", got)
	}
}

// Connections that need less, among those that need more, neither raise a limit nor prevent it.
func TestSecondGreatestNeedCounts(t *testing.T) {
	c := New(64 * mib)
	little := func() *tcp.Sample {
		s := upload(t0)
		s.BytesAcked /= 10
		return s
	}
	c.Observe(upload(t0))
	c.Observe(little())
	if got := decide(c, t0, limits(4*mib, 4*mib), false); got != nil {
		t.Errorf("one connection that needs more: %+v", got)
	}
	c.Observe(upload(t0))
	c.Observe(little())
	if got := decide(c, t0, limits(4*mib, 4*mib), false); len(got) != 1 {
		t.Errorf("two connections that need more: %+v", got)
	}
}

// When TCP is short of memory, nothing stays raised, and nothing is raised for a while, longer each time.
func TestShortageOfMemory(t *testing.T) {
	c, now := New(64*mib), t0
	raise := func() []Change {
		c.Observe(upload(now))
		c.Observe(upload(now))
		return decide(c, now, limits(4*mib, 4*mib), false)
	}
	for i, pause := range []time.Duration{10 * time.Minute, 20 * time.Minute, 40 * time.Minute} {
		if got := raise(); len(got) != 1 {
			t.Fatalf("%d: %+v", i, got)
		}
		got := decide(c, now, limits(4*mib, 8*mib), true)
		if len(got) != 1 || got[0].From != 8*mib || got[0].To != 4*mib || len(c.Raised()) != 0 {
			t.Fatalf("%d: %+v, raised %+v", i, got, c.Raised())
		}
		decide(c, now+1, limits(4*mib, 4*mib), true) // the same shortage
		now += int64(pause) - 1
		if got := raise(); got != nil {
			t.Fatalf("%d: within the pause: %+v", i, got)
		}
		now++
	}
	now += int64(lastPause)
	raise()
	decide(c, now, limits(4*mib, 8*mib), true)
	if got := time.Duration(c.PausedUntil(now) - now); got != firstPause {
		t.Errorf("after a long time without a shortage the pause is %s", got)
	}
}

// A limit that an administrator changes stays as it is, until the configuration is read again.
func TestAdministratorWins(t *testing.T) {
	c := New(64 * mib)
	c.Observe(upload(t0))
	c.Observe(upload(t0))
	decide(c, t0, limits(4*mib, 4*mib), false)
	changes, left := c.Decide(t0, limits(4*mib, 5*mib), false)
	if changes != nil || len(left) != 1 || left[0].Limit != 8*mib || len(c.RestoreAll()) != 0 {
		t.Errorf("changes %+v, left %+v, to restore %+v", changes, left, c.RestoreAll())
	}
	again := func() []Change {
		c.Observe(upload(t0))
		c.Observe(upload(t0))
		return decide(c, t0, limits(4*mib, 5*mib), false)
	}
	if got := again(); got != nil {
		t.Errorf("raised what an administrator wrote: %+v", got)
	}
	c.Release()
	if got := again(); len(got) != 1 {
		t.Errorf("after a reload: %+v", got)
	}
}

func TestAdoptAndForget(t *testing.T) {
	c := New(64 * mib)
	c.Adopt(Raised{NetNS: here, Which: Send, Original: 4 * mib, Limit: 8 * mib})
	c.Adopt(Raised{NetNS: here, Which: Send, Original: 8 * mib, Limit: 16 * mib}) // known already
	if got := c.RestoreAll(); len(got) != 1 || got[0].From != 8*mib || got[0].To != 4*mib {
		t.Errorf("to restore: %+v", got)
	}
	if r := c.After(Change{NetNS: here, Which: Send, From: 8 * mib, To: 16 * mib}, t0); r.Original != 4*mib || r.Limit != 16*mib {
		t.Errorf("after a second raise: %+v", r)
	}
	c.Forget(func(uint64) bool { return false })
	if len(c.Raised()) != 0 || len(c.Wanted(t0)) != 0 {
		t.Error("a namespace that is gone is known")
	}
}

func BenchmarkObserve(b *testing.B) {
	c, s := New(64*mib), upload(t0)
	s.Flags = 0
	for range b.N {
		c.Observe(s)
	}
}

// After the clock was set back by hours, limits are raised as before: by samples of one minute, and no later than a pause may last.
func TestClockSetBack(t *testing.T) {
	c, back := New(64*mib), t0-8*int64(time.Hour)
	c.Observe(upload(t0))
	c.Observe(upload(back))
	if got := c.Wanted(back); got != nil {
		t.Errorf("one sample: wanted %v", got)
	}
	if got := decide(c, back, limits(4*mib, 4*mib), false); got != nil {
		t.Errorf("one sample: %+v", got)
	}
	c.Observe(upload(back + 1e9))
	if got := decide(c, back+1e9, limits(4*mib, 4*mib), false); len(got) != 1 {
		t.Errorf("two samples: %+v", got)
	}
	decide(c, t0, limits(4*mib, 8*mib), true)
	c.Observe(upload(back))
	c.Observe(upload(back))
	if got := decide(c, back, limits(4*mib, 4*mib), false); len(got) != 1 {
		t.Errorf("a pause that began hours later: %+v", got)
	}
	if until := c.PausedUntil(back); until != 0 {
		t.Errorf("paused for %v", time.Duration(until-back))
	}
}
