package estimate

import (
	"math"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// receiver is a connection of a second that received 40 small segments and sent 20 with data, with
// a DELACK_MAX in milliseconds and a number of segments without data.
func receiver(at int64, ms, acks uint32) *tcp.Sample {
	return &tcp.Sample{Kind: tcp.KindInterval, Flags: tcp.FlagLater, At: at, Duration: time.Second, SRTT: 1000, MSS: 1448, DelackMax: time.Duration(ms) * time.Millisecond,
		DataSegsIn: 40, BytesReceived: 4000, DataSegsOut: 20, SegsOut: 20 + acks}
}

// receive observes n such samples, one a second, and returns when the last was.
func receive(d *Delack, at int64, n int, ms, acks uint32) int64 {
	for range n {
		at += int64(time.Second)
		d.observe(receiver(at, ms, acks))
	}
	return at
}

const (
	usual = iota // indices into DelackMaxes
	at16
	at8
	at4
)

func TestWaits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *tcp.Sample)
		want   float32
	}{
		"each message in two pieces, both acknowledged": {func(*tcp.Sample) {}, 20},
		"the first piece acknowledged":                  {func(s *tcp.Sample) { s.SegsOut = 40 }, 20},
		"half of them in two pieces":                    {func(s *tcp.Sample) { s.DataSegsIn = 30; s.SegsOut = 30 }, 10},
		"with a short delay, in less time":              {func(s *tcp.Sample) { s.DelackMax, s.Duration = 8*time.Millisecond, 200*time.Millisecond }, 20},
		"both pieces at once, answered at once":         {func(s *tcp.Sample) { s.SegsOut = 20 }, 0},
		"messages of one segment":                       {func(s *tcp.Sample) { s.DataSegsIn = 20; s.SegsOut = 20 }, 0},
		"messages of one segment, answered late":        {func(s *tcp.Sample) { s.DataSegsIn = 20 }, 0},
		"a stream without answers":                      {func(s *tcp.Sample) { s.DataSegsOut, s.SegsOut = 0, 40 }, 0},
		"a download":                                    {func(s *tcp.Sample) { s.BytesReceived = 40 * 1448 }, 0},
		"in less time than the delays":                  {func(s *tcp.Sample) { s.Duration = 300 * time.Millisecond }, 0},
		"few segments":                                  {func(s *tcp.Sample) { s.DataSegsIn = 7 }, 0},
		"whole, with handshake and end":                 {func(s *tcp.Sample) { s.Kind, s.Flags, s.SegsOut = tcp.KindClose, 0, 20+handshakeACKs }, 0},
		"nothing sent":                                  {func(s *tcp.Sample) { s.SegsOut, s.DataSegsOut = 0, 0 }, 0},
	} {
		s := receiver(t0, 200, 40)
		c.change(s)
		if got := waits(s); got != c.want {
			t.Errorf("%s: %v waits, want %v", name, got, c.want)
		}
		if got := ShowsWaits(s); got != (c.want > 0) {
			t.Errorf("%s: shows waits: %v", name, got)
		}
	}
	for name, change := range map[string]func(s *tcp.Sample){
		"no round-trip time":  func(s *tcp.Sample) { s.SRTT = 0 },
		"a value of its own":  func(s *tcp.Sample) { s.DelackMax = 40 * time.Millisecond },
		"an unknown DELACK":   func(s *tcp.Sample) { s.DelackMax = 0 },
		"a longer one (none)": func(s *tcp.Sample) { s.DelackMax = time.Second },
	} {
		s := receiver(t0, 200, 40)
		if change(s); ShowsWaits(s) {
			t.Errorf("%s: shows waits", name)
		}
	}
}

// Waits are a share of all segments that are received, also of other connections.
func TestDelackShare(t *testing.T) {
	var d Delack
	if d.Share() != 0 || d.Comparable() {
		t.Errorf("nothing was observed: %+v", d)
	}
	if receive(&d, t0, 1, 200, 20); d.Share() > 0.2 || d.Comparable() {
		t.Errorf("one connection: %+v", d)
	}
	at := receive(&d, d.At, 9, 200, 20)
	if got := d.Share(); got < 0.49 || got > 0.51 || !d.Comparable() {
		t.Errorf("share %v: %+v", got, d)
	}
	if receive(&d, at, 30, 200, 0); math.Abs(float64(d.Share())-0.125) > 0.01 {
		t.Errorf("with 30 others: share %v: %+v", d.Share(), d)
	}
	// One connection does not decide, however long it is.
	s := receiver(d.At, 200, 0)
	s.DataSegsIn, s.BytesReceived = 1_000_000, 1_000_000*1448
	if before := d.Received; d.Share() == 0 || before == 0 {
		t.Error("nothing is known")
	} else if d.observe(s); d.Received-before > delackSample+1 {
		t.Errorf("a download counts as %v segments", d.Received-before)
	}
}

// A value that costs more ACKs than the kernel's is barred, with shorter ones: for 10 minutes, then
// for twice as long. A value that costs none is not.
func TestDelackIsBarred(t *testing.T) {
	var d Delack
	at := receive(&d, t0, 20, 200, 20)
	if at = receive(&d, at, 100, 8, 20); d.Until != 0 {
		t.Fatalf("no more ACKs than with the kernel's: %+v", d)
	}
	for n, want := range []time.Duration{10 * time.Minute, 20 * time.Minute} {
		began := at
		for d.Until <= at && at < began+int64(10*time.Minute) {
			at = receive(&d, at, 1, 8, 40)
		}
		if d.For != want || !d.IsBarred(at8, at) || !d.IsBarred(at4, at) || d.IsBarred(at16, at) || d.IsBarred(usual, at) {
			t.Fatalf("bar %d after %s: %+v", n+1, time.Duration(at-began), d)
		}
		until := d.Until
		if receive(&d, at, 20, 8, 40); d.Until != until {
			t.Errorf("bar %d was prolonged by connections that began before: %+v", n+1, d)
		}
		if at = until + 1; d.IsBarred(at8, at) {
			t.Errorf("bar %d does not end: %+v", n+1, d)
		}
		receive(&d, at, 20, 200, 20)
	}
}

// Few connections do not bar a value, nor is one barred without connections to compare with.
func TestDelackBarNeedsProof(t *testing.T) {
	var d Delack
	at := receive(&d, t0, 20, 200, 20)
	if receive(&d, at, 2, 8, 40); d.Until != 0 {
		t.Errorf("two connections: %+v", d)
	}
	d = Delack{}
	if receive(&d, t0, 100, 8, 40); d.Until != 0 {
		t.Errorf("nothing to compare with: %+v", d)
	}
	// Downloads have an ACK for every other segment, requests none: the kinds are compared each
	// with its own.
	d = Delack{}
	download := func(at int64, ms uint32) *tcp.Sample {
		s := receiver(at, ms, 0)
		s.DataSegsIn, s.BytesReceived, s.SegsOut = 200, 200*1448, 20+100
		return s
	}
	for range 50 {
		at = receive(&d, at, 10, 200, 0)
		d.observe(download(at, 200))
		d.observe(download(at, 8))
	}
	if d.Until != 0 {
		t.Errorf("downloads with a shorter delay, requests without: %+v", d)
	}
	if extra, of := d.Extra(at8); of < 5000 || extra > 1 || extra < -1 {
		t.Errorf("%v more ACKs of %v", extra, of)
	}
}

func TestDelackFades(t *testing.T) {
	var d Delack
	at := receive(&d, t0, 100, 200, 20)
	if d.observe(receiver(at+int64(10*time.Hour), 200, 0)); d.Received > 60 || d.Comparable() {
		t.Errorf("after ten hours: %+v", d)
	}
	if receive(&d, d.At, 1000, 200, 20); d.Received > delackMemory || d.Counts[usual][0].Received > delackMemory {
		t.Errorf("%+v", d)
	}
	if share := d.Share(); share < 0.45 || share > 0.51 {
		t.Errorf("share %v", share)
	}
}

// The kernel rounds up to its clock.
func TestDelackIndex(t *testing.T) {
	for us, want := range map[time.Duration]int{
		200_000: usual, 199_980: usual, 210_000: usual, 16_000: at16, 20_000: at16, 8000: at8, 9999: at8, 4000: at4, 3999: at4,
		0: -1, 1000: -1, 40_000: -1, 100_000: -1, 220_000: -1,
	} {
		if got := delackIndex(us * time.Microsecond); got != want {
			t.Errorf("%d us is number %d, want %d", us, got, want)
		}
	}
}
