package limit

import (
	"math"
	"time"
)

// Conn is one connection that is under one or two limits.
type Conn struct {
	Cookie     uint64
	Rule, Path uint64 // keys of its limits; 0 is none
	// Own is the limit that the application, or a fixed value of the rule, has set, and Given what
	// the socket has now, bytes/s; 0 is none.
	Own, Given uint64
	Since      int64  // since when it has Given, nanoseconds of the clock of Divide
	Sent       uint64 // bytes, retransmissions included, since it came under a limit
	Unsent     uint32 // bytes that wait to be sent
}

// Limit is a rate limit of connections together.
type Limit struct {
	Rate       uint64 // bytes/s, of all of them; 0: only each is limited
	Connection uint64 // bytes/s, of each; 0: no bound
	Ended      uint64 // bytes that connections sent that have ended
	// Offered is how many bytes all traffic under the limit has sent so far, of which the connections may be a part, and
	// also what was dropped, in those that Rate is of; 0: unknown.
	Offered uint64
}

// State is what a limit does now.
type State struct {
	Limit
	Connections int     // that are under it
	Active      int     // of them, those that have sent lately
	Level       uint64  // bytes/s; the most that one connection gets; 0: as much as it needs
	Sent        uint64  // bytes, by all connections so far; never less than before
	Measured    float64 // bytes/s, retransmissions included, in about the last second
	Others      float64 // bytes/s, by other traffic under the limit, also what was dropped, lately; at most Rate
	// Base is the number of equal shares that the limit is divided into already: the next connection
	// that begins, and wants as much as it can get, finds Rate/(Base+1) as its fair share.
	Base float64

	left uint64 // bytes that were sent by connections that are under other limits now; they are part of Sent
}

// Result is one division.
type Result struct {
	Shares map[uint64]uint32 // bytes/s, by cookie; a connection that is idle has none
	Limits map[uint64]State  // by key
	// Behind is the number of connections that go on sending at another rate than the share of the
	// division before: the kernel did not tell them that there is another one.
	Behind int
}

const (
	// usedPart is the part of its share from which on a connection with data to send counts as held
	// back by the share.
	usedPart = 0.8
	// ramp is by how much a connection that sends less than its share, although it has data to
	// send, may grow until the next division: its congestion window may be growing.
	ramp = 1.5
	// burst is by how much one without data to send at the moment may grow.
	burst = 1.1
	// measured is how long Measured averages.
	measured = time.Second
	// aboveShare is the ratio above which a connection counts as sending more than its share, or as held below it.
	aboveShare = 1.1
	// othersRoom is how much room connections leave to other traffic, over what that uses: it can grow, and is not
	// dropped for a burst.
	othersRoom = 1.1
	// mostOthers is the part of a limit that connections leave to other traffic at most.
	mostOthers = 0.5
	// mostShare is the greatest rate that programs can pass to SO_MAX_PACING_RATE.
	mostShare = math.MaxUint32 - 1
)

// Divider divides limits again and again. The zero Divider is ready. It is not for concurrent use.
type Divider struct {
	at     int64
	conns  map[uint64]Conn // by cookie
	shares map[uint64]uint32
	before map[uint64]State
}

// Divide computes the shares of all connections. now is in nanoseconds of any clock that never goes
// back. The shares of a path's limit are bounds for those of the rule's limit, so that a rule's
// limit is not wasted on connections that their path holds back.
func (d *Divider) Divide(now int64, limits map[uint64]Limit, conns []Conn) Result {
	took := time.Duration(now - d.at)
	r := Result{Shares: make(map[uint64]uint32, len(conns)), Limits: make(map[uint64]State, len(limits))}
	known := make(map[uint64]Conn, len(conns))
	left := map[uint64]uint64{}
	needs := make([]need, len(conns))
	byKey := make(map[uint64][]int, len(limits))
	for key, l := range limits {
		r.Limits[key] = State{Limit: l, Sent: l.Ended}
	}
	for i := range conns {
		c := &conns[i]
		known[c.Cookie] = *c
		was := d.conns[c.Cookie]
		for _, key := range []uint64{was.Path, was.Rule} {
			if key != 0 && key != c.Path && key != c.Rule {
				left[key] += was.Sent
			}
		}
		needs[i] = d.need(c, took)
		if d.behind(c, took) {
			r.Behind++
		}
		for _, key := range []uint64{c.Path, c.Rule} {
			if s, ok := r.Limits[key]; ok && key != 0 {
				s.Connections++
				s.Sent += c.Sent
				if needs[i].rate > 0 {
					s.Active++
					byKey[key] = append(byKey[key], i)
				}
				r.Limits[key] = s
			}
		}
	}
	for key, s := range r.Limits {
		before := d.before[key]
		// A connection that ended after the sums of ended ones were read is in neither, but it is in the next ones.
		s.left = before.left + left[key]
		s.Sent = max(s.Sent+s.left, before.Sent)
		s.Measured, s.Others = d.measure(s, before, took)
		s.Base = s.base(nil)
		r.Limits[key] = s
	}
	shares := make([]float64, len(conns))
	for i := range shares {
		shares[i] = math.Inf(1)
	}
	for _, ofRule := range []bool{false, true} {
		for key, list := range byKey {
			if (conns[list[0]].Rule == key) == ofRule {
				r.Limits[key] = r.Limits[key].divide(list, needs, shares)
			}
		}
	}
	for i, s := range shares {
		if needs[i].rate > 0 && !math.IsInf(s, 1) {
			r.Shares[conns[i].Cookie] = uint32(max(1, min(s, mostShare)))
		}
	}
	d.at, d.conns, d.shares, d.before = now, known, r.Shares, r.Limits
	return r
}

// Left is the part of Rate that is left to other traffic, bytes/s.
func (s *State) Left() float64 {
	return min(othersRoom*s.Others, mostOthers*float64(s.Rate))
}

// base is State.Base with these needs.
func (s *State) base(needs []need) float64 {
	if s.Rate == 0 {
		return 0
	}
	usable := float64(s.Rate) - s.Left()
	return (among(usable, needs)+1)*float64(s.Rate)/usable - 1
}

// divide divides one limit among the active connections of the list, and lowers their shares and
// bounds to it.
func (s State) divide(list []int, needs []need, shares []float64) State {
	part, out := make([]need, len(list)), make([]float64, len(list))
	for i, c := range list {
		part[i] = needs[c]
		if s.Connection != 0 {
			part[i].bound = min(part[i].bound, float64(s.Connection))
		}
		out[i] = part[i].bound
	}
	if s.Rate != 0 {
		level := divide(float64(s.Rate)-s.Left(), part, out)
		if !math.IsInf(level, 1) {
			s.Level = uint64(level)
		}
		s.Base = s.base(part)
	}
	for i, c := range list {
		shares[c] = min(shares[c], out[i])
		needs[c].bound = min(needs[c].bound, out[i])
	}
	return s
}

// need is what a connection wants. It is judged by what it has sent since the last division.
func (d *Divider) need(c *Conn, took time.Duration) need {
	n := need{bound: math.Inf(1)}
	if c.Own != 0 {
		n.bound = float64(c.Own)
	}
	before, known := d.conns[c.Cookie]
	if !known || took <= 0 || c.Sent < before.Sent {
		n.rate = math.Inf(1) // it is new
		return n
	}
	used := float64(c.Sent-before.Sent) / took.Seconds()
	switch given := float64(c.Given); {
	case used == 0:
		// Idle. If it has data to send, nothing is acknowledged, and nothing can be sent.
	case c.Unsent == 0:
		n.rate = burst * used
	case c.Given == 0, c.Since > d.at, used >= usedPart*given:
		n.rate = math.Inf(1) // held back by its share, or it has had that for too short a time to tell
	default:
		n.rate = ramp * used
	}
	return n
}

// behind reports whether a connection has sent at well more than its share of the division before, or is held back by an older
// share that is well less.
func (d *Divider) behind(c *Conn, took time.Duration) bool {
	share, given := float64(d.shares[c.Cookie]), float64(c.Given)
	sent := float64(c.Sent-min(d.conns[c.Cookie].Sent, c.Sent)) / took.Seconds()
	if share == 0 || given == 0 || c.Since >= d.at {
		return false
	}
	if given > share {
		return given > aboveShare*share && sent > aboveShare*share
	}
	if c.Own != 0 {
		share = min(share, float64(c.Own))
	}
	return aboveShare*given < share && sent >= usedPart*given
}

// measure smooths the rates of a limit's connections, and of the other traffic under it.
func (d *Divider) measure(now, before State, took time.Duration) (conns, others float64) {
	if d.at == 0 || took <= 0 {
		return before.Measured, before.Others
	}
	sent := float64(now.Sent - before.Sent)
	if before.Offered != 0 && now.Offered >= before.Offered {
		others = max(0, float64(now.Offered-before.Offered)-sent) / took.Seconds()
	}
	conns = before.Measured + (sent/took.Seconds()-before.Measured)*min(1, took.Seconds()/measured.Seconds())
	return conns, (before.Others + min(others, float64(now.Rate))) / 2
}
