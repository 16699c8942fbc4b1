package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

const step = int64(250 * time.Millisecond)

// model is a connection with an application that offers data at some rate.
type model struct {
	Conn
	offers  float64 // bytes/s; +Inf: as much as it can
	carries float64 // bytes/s; what its path carries
	waiting float64
	total   float64
}

// world is connections under limits, and what the kernel does with shares.
type world struct {
	Divider
	now     int64
	limits  map[uint64]Limit
	others  float64 // bytes/s, of other traffic under limit 1
	offered float64
	conns   []*model
	last    Result
}

func (w *world) begin(offers float64) *model {
	m := &model{Conn: Conn{Cookie: uint64(len(w.conns) + 1), Rule: 1}, offers: offers, carries: math.Inf(1)}
	w.conns = append(w.conns, m)
	return m
}

// follow gives connections what the programs would (limit_follow in bpf/sockops/limits.bpf.h).
func (w *world) follow() {
	l, s, fresh := w.limits[1], w.last.Limits[1], 0.
	for _, m := range w.conns {
		if w.last.Shares[m.Cookie] == 0 && m.offers > 0 {
			fresh++
		}
	}
	for _, m := range w.conns {
		want, share := math.Inf(1), float64(w.last.Shares[m.Cookie])
		if share != 0 {
			want = share
		}
		if l.Connection != 0 {
			want = min(want, float64(l.Connection))
		}
		if m.Own != 0 {
			want = min(want, float64(m.Own))
		}
		if l.Rate != 0 && fresh > 0 && (share != 0 || m.offers > 0) {
			want = min(want, float64(l.Rate)/max(1, s.Base+fresh))
		}
		if !math.IsInf(want, 1) && m.Given != uint64(want) {
			m.Given, m.Since = uint64(want), w.now
		}
	}
}

// step lets all connections send for one interval, and divides. It returns what they sent, bytes/s.
func (w *world) step() float64 {
	w.follow()
	dt, sum := float64(step)/1e9, 0.
	var list []Conn
	for _, m := range w.conns {
		want := m.waiting/dt + m.offers
		got := min(want, m.carries)
		if m.Given != 0 {
			got = min(got, float64(m.Given))
		}
		if m.waiting = 0; want > got {
			m.waiting = min((want-got)*dt, 1e6)
		}
		m.total += got * dt
		m.Sent, m.Unsent = uint64(m.total), uint32(m.waiting)
		sum += got
		list = append(list, m.Conn)
	}
	if l, ok := w.limits[1]; ok && w.others > 0 {
		w.offered += (sum + w.others) * dt
		l.Offered = uint64(w.offered)
		w.limits[1] = l
	}
	w.now += step
	w.last = w.Divide(w.now, w.limits, list)
	w.follow()
	return sum
}

// Connections that come, go, wake up and fall idle use the limit, and do not exceed it.
func TestDividerUsesTheLimit(t *testing.T) {
	for _, n := range []int{1, 2, 5, 20, 50} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := &world{limits: map[uint64]Limit{1: {Rate: 1e6}}, now: 1}
			rnd := rand.New(rand.NewPCG(uint64(n), 1))
			for range n {
				w.begin(math.Inf(1))
			}
			var sum, steps float64
			for i := range 400 {
				if i > 0 && i%20 == 0 && n > 1 { // half of them change
					for _, m := range w.conns[1:] {
						m.offers = []float64{0, 2e3, math.Inf(1)}[rnd.IntN(3)]
						m.waiting = 0
					}
				}
				got := w.step()
				if i%20 < 4 {
					continue // a second after a change
				}
				sum, steps = sum+got, steps+1
				if got > 1e6*(1+slack) {
					t.Fatalf("step %d: %g bytes/s of 1e6", i, got)
				}
			}
			if mean := sum / steps; mean < 0.97e6 || mean > 1.03e6 {
				t.Errorf("%g bytes/s on average, want 1e6", mean)
			}
		})
	}
}

// A connection that its own path holds back leaves its share to the others, and gets more when the
// path carries more.
func TestDividerFollowsWhatThePathCarries(t *testing.T) {
	w := &world{limits: map[uint64]Limit{1: {Rate: 1e6}}, now: 1}
	slow, fast := w.begin(math.Inf(1)), w.begin(math.Inf(1))
	slow.carries = 1e5
	for range 8 {
		w.step()
	}
	if fast.Given < 850e3 || slow.Given < 1e5 {
		t.Errorf("%d and %d bytes/s, want 1e5 and the rest", slow.Given, fast.Given)
	}
	slow.carries = math.Inf(1)
	for range 8 {
		w.step()
	}
	if fast.Given > 510e3 || slow.Given < 490e3 {
		t.Errorf("%d and %d bytes/s, want half each", slow.Given, fast.Given)
	}
}

// The limit of a path bounds what its connections get of the rule's; the rest is for the others.
func TestDividerOfTwoLimits(t *testing.T) {
	w := &world{limits: map[uint64]Limit{1: {Rate: 1e6}, 2: {Rate: 2e5}}, now: 1}
	a, b, c := w.begin(math.Inf(1)), w.begin(math.Inf(1)), w.begin(math.Inf(1))
	a.Path, b.Path = 2, 2
	for range 4 {
		w.step()
	}
	if a.Given != 1e5 || b.Given != 1e5 || c.Given < 799e3 || c.Given > 801e3 {
		t.Errorf("%d, %d and %d bytes/s, want 1e5, 1e5 and 8e5", a.Given, b.Given, c.Given)
	}
}

func TestDividerKeepsBounds(t *testing.T) {
	w := &world{limits: map[uint64]Limit{1: {Rate: 1e6, Connection: 3e5}}, now: 1}
	a, b := w.begin(math.Inf(1)), w.begin(math.Inf(1))
	a.Own = 1e5
	for range 4 {
		w.step()
	}
	if a.Given != 1e5 || b.Given != 3e5 {
		t.Errorf("%d and %d bytes/s, want the application's 1e5, and the rule's 3e5", a.Given, b.Given)
	}
	w.limits[1] = Limit{Connection: 2e5}
	w.step()
	if b.Given != 2e5 || w.last.Limits[1].Level != 0 {
		t.Errorf("%d bytes/s without a total, want 2e5", b.Given)
	}
}

// Connections leave to other traffic what it uses, up to half of the limit. It is noticed as well while there are no
// connections.
func TestDividerLeavesRoomForOtherTraffic(t *testing.T) {
	w := &world{limits: map[uint64]Limit{1: {Rate: 1e6}}, others: 3e5, now: 1}
	for range 20 {
		w.step()
	}
	c := w.begin(math.Inf(1))
	for _, part := range []struct{ others, want float64 }{{3e5, 6.7e5}, {9e5, 5e5}, {1, 1e6}} {
		w.others = part.others
		for i := range 20 {
			w.step()
			if got := float64(c.Given); (i == 19 || part.others == 3e5) && math.Abs(got-part.want) > 0.01e6 {
				t.Errorf("beside %g bytes/s, after %d divisions: %g of 1e6, want %g", part.others, i, got, part.want)
			}
		}
	}
}

// State says how many connections there are and what they send, those that have ended included.
func TestDividerMeasures(t *testing.T) {
	w := &world{limits: map[uint64]Limit{1: {Rate: 1e6}}, now: 1}
	w.begin(math.Inf(1))
	w.begin(0)
	for range 40 {
		l := w.limits[1]
		l.Ended += uint64(1e5 * float64(step) / 1e9)
		w.limits[1] = l
		w.step()
	}
	s := w.last.Limits[1]
	if s.Connections != 2 || s.Active != 1 || s.Measured < 1.05e6 || s.Measured > 1.15e6 || s.Level == 0 {
		t.Errorf("%+v, want 2 connections, 1 active, 1.1e6 bytes/s", s)
	}
}

// A connection that sends at an old rate shows that the kernel does not tell it of its share.
func TestDividerNoticesWhoDoesNotFollow(t *testing.T) {
	d := &Divider{}
	conns := []Conn{{Cookie: 1, Rule: 1, Given: 1e6, Unsent: 1}, {Cookie: 2, Rule: 1, Given: 1e6, Unsent: 1}}
	for i := range int64(4) {
		r := d.Divide(1+i*step, map[uint64]Limit{1: {Rate: 1e6}}, conns)
		if want := 2 * int(min(i, 1)); r.Behind != want {
			t.Errorf("division %d: %d connections are behind", i, r.Behind)
		}
		for j := range conns {
			conns[j].Sent += uint64(1e6 * float64(step) / 1e9)
		}
	}
}

// A connection whose share has risen sends at the old rate: the same. One that its path holds back, or the application, is not behind.
func TestDividerNoticesWhoStaysBelow(t *testing.T) {
	for name, c := range map[string]struct {
		given, own uint64
		sends      float64 // bytes/s
		want       int
	}{
		"old share": {2e5, 0, 2e5, 1},
		"its path":  {2e5, 0, 1e5, 0},
		"its own":   {2e5, 2e5, 2e5, 0},
		"close":     {93e4, 0, 93e4, 0},
		"no rate":   {0, 0, 2e5, 0},
	} {
		d := &Divider{}
		conn := Conn{Cookie: 1, Rule: 1, Given: c.given, Own: c.own, Unsent: 1}
		for i := range int64(3) {
			r := d.Divide(1+i*step, map[uint64]Limit{1: {Rate: 1e6}}, []Conn{conn})
			if want := c.want * int(min(i, 1)); r.Behind != want {
				t.Errorf("%s, division %d: %d connections are behind, want %d; shares %v", name, i, r.Behind, want, r.Shares)
			}
			conn.Sent += uint64(c.sends * float64(step) / 1e9)
		}
	}
}

// A connection may end between the two reads of what was sent: it is counted as ended in the next
// division, and the sum does not go back in this one.
func TestSentNeverGoesBack(t *testing.T) {
	var d Divider
	live := []Conn{{Cookie: 1, Rule: 7, Sent: 1000}, {Cookie: 2, Rule: 7, Sent: 500}}
	for n, c := range []struct {
		ended uint64
		conns []Conn
		want  uint64
	}{{0, live, 1500}, {0, live[:1], 1500}, {600, live[:1], 1600}, {600, nil, 1600}, {1700, nil, 1700}} {
		r := d.Divide(int64(n+1)*step, map[uint64]Limit{7: {Rate: 1e6, Ended: c.ended}}, c.conns)
		if got := r.Limits[7].Sent; got != c.want {
			t.Errorf("division %d: %d bytes sent, want %d", n, got, c.want)
		}
	}
}

// Connections that end one after the other between the two reads, or that are missed once, have not left.
func TestSentCountsConnectionsOnce(t *testing.T) {
	var d Divider
	live := []Conn{{Cookie: 1, Rule: 7, Sent: 1000}, {Cookie: 2, Rule: 7, Sent: 500}, {Cookie: 3, Rule: 7, Sent: 10}}
	for n, c := range []struct {
		ended uint64
		conns []Conn
		want  uint64
	}{{0, live, 1510}, {0, live[1:], 1510}, {0, live[2:], 1510}, {0, live, 1510}, {0, live[1:], 1510}, {1000, live[2:], 1510}, {1500, live[2:], 1510}, {1510, nil, 1510}} {
		r := d.Divide(int64(n+1)*step, map[uint64]Limit{7: {Rate: 1e6, Ended: c.ended}}, c.conns)
		if got := r.Limits[7].Sent; got != c.want {
			t.Errorf("division %d: %d bytes sent, want %d", n, got, c.want)
		}
	}
}

// A connection may come under another limit, because a rule was edited. What it has sent so far does not hide what the others send:
// that would count as other traffic, for which half of a pod's limit was kept free.
func TestConnectionThatLeavesALimit(t *testing.T) {
	var d Divider
	limits := map[uint64]Limit{7: {Rate: 1e6, Offered: 1e12}, 8: {Rate: 1e6}}
	conns := []Conn{{Cookie: 1, Rule: 7, Sent: 1e10}, {Cookie: 2, Rule: 7, Unsent: 1}}
	var r Result
	for i := range 40 {
		if i == 10 {
			conns[0].Rule, conns[0].Sent = 8, 0
		}
		before := r.Limits[7].Sent
		r = d.Divide(int64(i+1)*step, limits, conns)
		sent := uint64(1e6 * float64(step) / 1e9)
		if i > 11 && r.Limits[7].Sent != before+sent {
			t.Fatalf("division %d: sent %d, %d before", i, r.Limits[7].Sent, before)
		}
		conns[1].Sent += sent
		conns[1].Given, conns[1].Since = uint64(r.Shares[2]), int64(i)*step
		l := limits[7]
		l.Offered += sent
		limits[7] = l
	}
	if s := r.Limits[7]; s.Measured < 0.95e6 || s.Others > 0.05e6 || r.Shares[2] < 0.9e6 {
		t.Errorf("measured %.0f, others %.0f, share %d: want 1e6, 0, 1e6", s.Measured, s.Others, r.Shares[2])
	}
}
