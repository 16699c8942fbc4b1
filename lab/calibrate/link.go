package calibrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// Direction is the configuration and the measurement of one direction of a path.
type Direction struct {
	Asked Asked  `json:"asked"`
	Delay Spread `json:"delay"` // one way, with nothing else on the path; Probes is 0 if none arrived
	Sent  int    `json:"sent"`  // packets that Loss and Reorder are of
	Lost  int    `json:"lost"`
	// Loss and Reorder are shares of the packets.
	Loss    float64 `json:"loss"`
	Reorder float64 `json:"reorder"`
	// Results of a flood, if a rate was asked: what was sent and what arrived, in bit/s of
	// frames; the median wait in the queue; and the share of packets that were marked.
	Offered float64       `json:"offered_bits_per_second,omitempty"`
	Rate    float64       `json:"rate_bits_per_second,omitempty"`
	Queue   time.Duration `json:"queue_ns,omitempty"`
	Marked  float64       `json:"marked,omitempty"`

	canReorder bool // the probes were close enough together to overtake
	filled     bool // the flood was long enough for the queue
}

// Measured is the measurement of a path.
type Measured struct {
	From     string    `json:"from"` // hosts
	To       string    `json:"to"`
	Probes   int       `json:"probes"` // that were sent for RTT
	RTT      Spread    `json:"rtt"`
	Forward  Direction `json:"forward"`
	Backward Direction `json:"backward"`
	// Floor is the round trip of the same probes within one host: the time that this
	// process needs to receive a packet.
	Floor time.Duration `json:"floor_ns"`
	Host  Host          `json:"host"` // meanwhile
}

// probeTimes is how long each kind of probe runs.
type probeTimes struct{ delay, loss, rate time.Duration }

var (
	normal = probeTimes{delay: 1500 * time.Millisecond, loss: 4 * time.Second, rate: 1500 * time.Millisecond}
	quick  = probeTimes{delay: 500 * time.Millisecond, loss: time.Second, rate: 500 * time.Millisecond}
)

// Minimum numbers of probes that measure a delay, and a jitter. If the probes must be far
// apart, they run for longer to reach these numbers.
const (
	delayProbes  = 5
	jitterProbes = 50
)

// Link measures the path between two hosts, which must be otherwise idle. A path that
// carries nothing is not an error here; Check reports it.
func Link(ctx context.Context, l *topology.Layout, from, to *topology.Host, want Want) (m Measured, err error) {
	watch := StartWatch()
	defer func() { m.Host = watch.Stop() }()
	defer link.Reserve(2)() // for the sending threads of both directions
	m.From, m.To = from.Name, to.Name
	m.Forward.Asked, m.Backward.Asked = ask(want.Forward), ask(want.Backward)
	if want.Emulated {
		m.Forward.Asked.loose, m.Backward.Asked.loose = slack, slack
	}
	fail := func(err error) (Measured, error) {
		return m, fmt.Errorf("measure %s to %s: %w", from.Name, to.Name, err)
	}
	near, err := open(from, l.Addr(from, want.IPv6))
	if err != nil {
		return fail(err)
	}
	defer near.Close()
	far, err := open(to, l.Addr(to, want.IPv6))
	if err != nil {
		return fail(err)
	}
	defer far.Close()
	if m.Floor, err = floor(ctx, l, from, want.IPv6); err != nil {
		return fail(err)
	}
	e := normal
	if want.Quick {
		e = quick
	}
	overhead := ethernetHead + ipHead(want.IPv6) + udpHead
	easy := min(easyMost, 1/m.Floor.Seconds())
	p := path{
		there: direction{near, far, m.Forward.Asked, overhead, easy},
		back:  direction{far, near, m.Backward.Asked, overhead, easy},
	}
	if err := p.measure(ctx, e, &m); err != nil {
		return fail(err)
	}
	return m, nil
}

// easyMost is the maximum number of packets per second in each direction if nothing else
// limits them: more add no information. A slow machine sends fewer: one in the time that a
// packet takes to a socket and back.
const easyMost = 10_000

// path is both directions of the measured path.
type path struct{ there, back direction }

// measure runs one kind of probe after the other, because they would disturb each other.
func (p *path) measure(ctx context.Context, e probeTimes, m *Measured) error {
	linger := p.there.asked.worst() + p.back.asked.worst()
	space := max(p.there.asked.space(), p.back.asked.space())
	fewest := time.Duration(delayProbes)
	if p.there.asked.Jitter+p.back.asked.Jitter > 0 {
		fewest = jitterProbes
	}
	r, err := probe(ctx, 1, p.there.from, p.there.to, max(e.delay, fewest*space), space, linger)
	if err != nil {
		return err
	}
	m.Probes, m.RTT, m.Forward.Delay, m.Backward.Delay = r.sent, r.trip, r.there, r.back
	err = inTurn(true,
		func() error { return p.there.probeLoss(ctx, 2, e.loss, &m.Forward) },
		func() error { return p.back.probeLoss(ctx, 3, e.loss, &m.Backward) })
	if err != nil || r.trip.Probes == 0 {
		return err // with the losses, which show which direction is cut off
	}
	return inTurn(p.there.asked.Rate+p.back.asked.Rate <= p.there.easyBits(),
		func() error { return p.there.probeRate(ctx, 4, e.rate, &m.Forward) },
		func() error { return p.back.probeRate(ctx, 5, e.rate, &m.Backward) })
}

// inTurn runs two functions at the same time or one after the other.
func inTurn(together bool, a, b func() error) error {
	if !together {
		return errors.Join(a(), b())
	}
	done := make(chan error)
	go func() { done <- a() }()
	return errors.Join(b(), <-done)
}

// space is the time between single packets, so that none waits for the previous one: more
// than twice the jitter, and four times the time to send one.
func (a Asked) space() time.Duration {
	return max(4*time.Millisecond, 2*a.Jitter, 4*probeBytes*a.perByte)
}

// floorTries is how often the floor is measured until a probe comes back: an emulated
// machine may send none in the given time, while it waits for a processor of its host.
const floorTries = 5

// floor is the round trip between two sockets of one host.
func floor(ctx context.Context, l *topology.Layout, h *topology.Host, ipv6 bool) (time.Duration, error) {
	a, err := open(h, l.Addr(h, ipv6))
	if err != nil {
		return 0, err
	}
	defer a.Close()
	b, err := open(h, l.Addr(h, ipv6))
	if err != nil {
		return 0, err
	}
	defer b.Close()
	var r round
	for range floorTries {
		r, err = probe(ctx, 0, a, b, 100*time.Millisecond, 4*time.Millisecond, 100*time.Millisecond)
		if err != nil || r.trip.Probes > 0 {
			break
		}
	}
	if err == nil && r.trip.Probes == 0 {
		err = fmt.Errorf("none of %d probes came back within %s itself", r.sent, h.Name)
	}
	return r.trip.Median, err
}

func ipHead(ipv6 bool) int {
	if ipv6 {
		return 40
	}
	return 20
}
