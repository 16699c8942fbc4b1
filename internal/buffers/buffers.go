package buffers

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Which is one of the two limits of a namespace.
type Which uint8

const (
	Receive   Which = iota // net.ipv4.tcp_rmem
	Send                   // net.ipv4.tcp_wmem
	NumLimits              // how many there are
)

// Sysctl is the sysctl whose third value is the limit.
func (w Which) Sysctl() string {
	if w == Send {
		return "net.ipv4.tcp_wmem"
	}
	return "net.ipv4.tcp_rmem"
}

// Limits are the present maxima of a namespace in bytes, by Which; 0 is unknown.
type Limits [NumLimits]uint64

const (
	// evidence is the number of samples of bound connections, of one or of several, before a
	// limit is raised. A running connection is sampled every few seconds.
	evidence = 2
	// evidenceAge is how long a sample counts.
	evidenceAge = time.Minute
	// receiveShare is the least product of receive rate and least round-trip time, as a share
	// of the receive limit, with which a connection needs more. It is far below 1, because half
	// of the buffer is overhead (tcp_adv_win_scale; since Linux 6.6, the measured ratio), and
	// because the rate of a sample contains idle time.
	receiveShare = 1. / 4
	// sendShare is the least product of send rate and smoothed round-trip time, as a share of
	// the send limit. A connection that the limit bounds has between two thirds
	// (sk_stream_min_wspace) and all of it in flight while it sends.
	sendShare = 0.4
	// windowRoom is the least ratio of the congestion window to what is in flight that shows
	// that something else bounds the connection. The kernel's own measure, the time limited by
	// the send buffer, does not show it: it is 0 to 18 % for connections at a third of the
	// path's rate.
	windowRoom = 1.4
	// step is the factor of one raise: as much as the kernel's autotuning grows in a round trip.
	step = 2
	// least is the limit in bytes below which an administrator is assumed to save memory: the
	// kernel's own limits are 4 MiB and more, except on hosts with less than 512 MiB
	// (tcp_init, net/ipv4/tcp.c).
	least = 4 << 20

	// firstPause is for how long nothing is raised after a shortage of memory. It doubles with
	// each shortage, up to lastPause.
	firstPause = 10 * time.Minute
	lastPause  = 4 * time.Hour
)

// Change is a limit to write.
type Change struct {
	NetNS    uint64
	Which    Which
	From, To uint64 // bytes
	Why      string
}

// Raised is a limit that was raised.
type Raised struct {
	NetNS    uint64 `json:"netns"` // cookie
	Which    Which  `json:"which"`
	Original uint64 `json:"original_bytes"` // before the first raise
	Limit    uint64 `json:"limit_bytes"`    // as written
	At       int64  `json:"at_ns"`          // Unix nanoseconds of the latest raise
	Why      string `json:"why"`
}

// Controller holds what is known of each namespace. It is not safe for concurrent use.
type Controller struct {
	max    uint64
	limits map[key]*limit
	pause  time.Duration
	until  int64 // Unix nanoseconds: nothing is raised before
}

type key struct {
	netns uint64
	which Which
}

type limit struct {
	raised Raised // Limit is 0 if it was not raised
	left   bool   // left to the administrator, who changed it
	// needs are the greatest numbers of bytes in flight in samples of bound connections since
	// the limit changed, the greatest first.
	needs [evidence]uint64
	at    int64 // Unix nanoseconds of the latest such sample
}

// clear forgets the evidence.
func (l *limit) clear() { l.needs = [evidence]uint64{} }

// isOld reports whether the evidence is too old, or of a time to come: the clock was set back.
func (l *limit) isOld(now int64) bool { return time.Duration(now-l.at).Abs() > evidenceAge }

// need is the number of bytes that at least `evidence` samples had in flight; 0 if there are
// fewer samples.
func (l *limit) need() uint64 { return l.needs[evidence-1] }

// New returns a controller that raises limits up to max bytes.
func New(max uint64) *Controller {
	return &Controller{max: max, limits: make(map[key]*limit)}
}

// Observe notes the need of a connection that is bound by its buffers. For other connections it
// does next to nothing.
func (c *Controller) Observe(s *tcp.Sample) {
	if !s.Has(tcp.FlagRcvbufMax) && !s.Has(tcp.FlagSndbufMax) || s.MinRTT == 0 || s.Kind == tcp.KindFailedConnect {
		return
	}
	if s.Has(tcp.FlagRcvbufMax) && (!s.SinceLosses() || s.Has(tcp.FlagLater)) { // else Duration is too short for its counters
		c.note(s, Receive, inFlight(s.BytesReceived, s.Duration, s.MinRTT))
	}
	if s.Has(tcp.FlagSndbufMax) {
		sent := inFlight(s.BytesAcked, s.Busy, s.SRTT)
		if float64(s.Cwnd)*float64(s.MSS) > windowRoom*float64(sent) {
			c.note(s, Send, sent)
		}
	}
}

// inFlight is how many bytes are in flight, by Little's law. rtt is in microseconds.
func inFlight(bytes uint64, in time.Duration, rtt uint32) uint64 {
	if in <= 0 {
		return 0
	}
	return uint64(float64(bytes) / in.Seconds() * float64(rtt) * 1e-6)
}

func (c *Controller) note(s *tcp.Sample, w Which, need uint64) {
	if need == 0 {
		return
	}
	k := key{s.NetNS, w}
	l := c.limits[k]
	if l == nil {
		l = &limit{}
		c.limits[k] = l
	}
	if l.left {
		return
	}
	if l.isOld(s.At) {
		l.clear()
		l.at = 0
	}
	for i, other := range l.needs {
		if need > other {
			copy(l.needs[i+1:], l.needs[i:])
			l.needs[i] = need
			break
		}
	}
	l.at = max(l.at, s.At)
}

// Wanted lists the namespaces whose limits Decide needs, in order: those with evidence, and
// those with raised limits.
func (c *Controller) Wanted(now int64) []uint64 {
	var list []uint64
	for k, l := range c.limits {
		if l.isOld(now) {
			l.clear()
		}
		if !l.left && (l.need() != 0 || l.raised.Limit != 0) {
			list = append(list, k.netns)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Decide returns what to write now. current are the limits of the namespaces in Wanted;
// short says that TCP is short of memory. Then nothing stays raised. left are those that an
// administrator has changed since; they are left alone from now on. The caller reports each
// change that it wrote by Wrote.
func (c *Controller) Decide(now int64, current map[uint64]Limits, short bool) (changes []Change, left []Raised) {
	for k, l := range c.limits {
		have := current[k.netns][k.which]
		if r := l.raised; r.Limit != 0 && have != 0 && have != r.Limit {
			*l = limit{left: true}
			left = append(left, r)
		}
	}
	if short {
		c.shortage(now)
		changes = c.restore("TCP is short of memory")
	} else if !c.paused(now) {
		changes = c.raise(now, current)
	}
	slices.SortFunc(changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.NetNS, b.NetNS), cmp.Compare(a.Which, b.Which))
	})
	return changes, left
}

// shortage begins a pause: twice as long as the one before if that ended less than lastPause ago.
func (c *Controller) shortage(now int64) {
	switch {
	case c.paused(now):
		return
	case c.until != 0 && time.Duration(now-c.until).Abs() < lastPause:
		c.pause = min(2*c.pause, lastPause)
	default:
		c.pause = firstPause
	}
	c.until = now + int64(c.pause)
}

// restore returns the changes that take back every raise.
func (c *Controller) restore(why string) (changes []Change) {
	for k, l := range c.limits {
		l.clear()
		if r := l.raised; r.Limit != 0 {
			changes = append(changes, Change{NetNS: k.netns, Which: k.which, From: r.Limit, To: r.Original, Why: why})
		}
	}
	return changes
}

func (c *Controller) raise(now int64, current map[uint64]Limits) (changes []Change) {
	for k, l := range c.limits {
		have := current[k.netns][k.which]
		need := l.need()
		if l.left || need == 0 || have == 0 || l.isOld(now) {
			continue
		}
		to := min(step*have, c.max)
		if have < least || to <= have || need < needed(k.which, have) {
			continue
		}
		l.clear() // it was evidence for the old limit
		changes = append(changes, Change{NetNS: k.netns, Which: k.which, From: have, To: to, Why: fmt.Sprintf(
			"connections are bound by it with %.1f MB in flight", float64(need)/1e6)})
	}
	return changes
}

// needed is how many bytes a connection must have in flight to need a higher limit.
func needed(w Which, limit uint64) uint64 {
	if w == Send {
		return uint64(sendShare * float64(limit))
	}
	return uint64(receiveShare * float64(limit))
}

// Wrote notes that a change was written.
func (c *Controller) Wrote(ch Change, now int64) {
	k := key{ch.NetNS, ch.Which}
	l := c.limits[k]
	if l == nil {
		return
	}
	if ch.To == l.raised.Original {
		l.raised = Raised{}
		return
	}
	l.raised = c.After(ch, now)
}

// After is the record of the raised limit as it will be after a change.
func (c *Controller) After(ch Change, now int64) Raised {
	r := Raised{NetNS: ch.NetNS, Which: ch.Which, Original: ch.From, Limit: ch.To, At: now, Why: ch.Why}
	if l := c.limits[key{ch.NetNS, ch.Which}]; l != nil && l.raised.Limit != 0 {
		r.Original = l.raised.Original
	}
	return r
}

// Adopt takes over a limit that an earlier process raised, or that a namespace has inherited
// from one with a raised limit.
func (c *Controller) Adopt(r Raised) {
	k := key{r.NetNS, r.Which}
	switch l := c.limits[k]; {
	case l == nil:
		c.limits[k] = &limit{raised: r}
	case !l.left && l.raised.Limit == 0:
		l.raised = r
	}
}

// IsRaised reports whether a limit is raised now.
func (c *Controller) IsRaised(netns uint64, w Which) bool {
	l := c.limits[key{netns, w}]
	return l != nil && l.raised.Limit != 0
}

// RestoreAll returns the changes that take back every raise when tcpilot stops.
func (c *Controller) RestoreAll() []Change { return c.restore("tcpilot stops") }

// Raised lists the limits that are raised now, in order.
func (c *Controller) Raised() (list []Raised) {
	for _, l := range c.limits {
		if l.raised.Limit != 0 {
			list = append(list, l.raised)
		}
	}
	slices.SortFunc(list, func(a, b Raised) int {
		return cmp.Or(cmp.Compare(a.NetNS, b.NetNS), cmp.Compare(a.Which, b.Which))
	})
	return list
}

// Forget drops namespaces that are gone.
func (c *Controller) Forget(exists func(netns uint64) bool) {
	for k := range c.limits {
		if !exists(k.netns) {
			delete(c.limits, k)
		}
	}
}

// Release ends that limits are left to the administrator: they may be raised again.
func (c *Controller) Release() {
	for k, l := range c.limits {
		if l.left {
			delete(c.limits, k)
		}
	}
}

// PausedUntil is the time in Unix nanoseconds until which nothing is raised because TCP was short
// of memory; 0 if that is not so now.
func (c *Controller) PausedUntil(now int64) int64 {
	if !c.paused(now) {
		return 0
	}
	return c.until
}

// paused: a pause that would be longer than any is of a time before the clock was set back.
func (c *Controller) paused(now int64) bool {
	return now < c.until && c.until-now <= int64(lastPause)
}
