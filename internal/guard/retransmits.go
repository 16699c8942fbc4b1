package guard

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// RetransmitStorm compares shares of packets. There are many of them, but the
// losses of one connection come together, by the window: what overflows a queue
// takes half of a round trip with it. So packets count for fewer than they are.

const (
	// storm is the share of packets that an arm sends again beyond the hold-out's, and
	// stormFactor how many times the hold-out's it must be.
	storm       = 0.05
	stormFactor = 2
	// together is how many packets of independent fate all those of one connection are
	// worth at most, and half of that as many of them: learn's halfPackets, at which a
	// connection says half of what it can. By Kish's design effect this is a
	// correlation of 1/50 between the losses of a connection; where it shows to be
	// more, scatter says so.
	together = 50
	// heldPackets at the share of both are added to the hold-out's, as learn's
	// lossPackets are to a connection's: a few that all arrived do not make a share of 0.
	heldPackets = 100
	// liveWeight is what a sample of a live connection counts for: learn's
	// intervalWeight.
	liveWeight = 0.5
)

// packets are sums over connections, of each as many as it is worth.
type packets struct {
	sent  float64 // with data, those sent again included
	again float64
	// Of sent squared, sent times again, again squared: how much connections differ.
	sent2, both, again2 float64
}

func (p *packets) add(s *tcp.Sample) {
	w := 1.0
	if s.Kind == tcp.KindInterval {
		w = liveWeight
	}
	worth := together / (together + float64(max(s.DataSegsOut, s.Retrans))) // of each
	sent, again := worth*float64(max(s.DataSegsOut, s.Retrans)), worth*float64(s.Retrans)
	p.sent += w * sent
	p.again += w * again
	p.sent2 += w * sent * sent
	p.both += w * sent * again
	p.again2 += w * again * again
}

func (p *packets) fade() {
	p.sent /= 2
	p.again /= 2
	p.sent2 /= 2
	p.both /= 2
	p.again2 /= 2
}

// share of the packets that were sent again.
func (p *packets) share() float64 {
	if p.sent == 0 {
		return 0
	}
	return p.again / p.sent
}

// scatter is the sum of squares of what each connection sent again beyond the common
// share of its packets, or short of it; chance is what it would be if each packet met
// its fate by itself.
func (p *packets) scatter() float64 {
	r := p.share()
	return max(0, p.again2-2*r*p.both+r*r*p.sent2)
}

func (p *packets) chance() float64 {
	r := p.share()
	return p.sent * r * (1 - r)
}

// stormy reports whether an arm sends certainly and much more of its packets again
// than the hold-out does.
func stormy(arm, held *packets) bool {
	if arm.sent == 0 || held.sent == 0 {
		return false
	}
	// How many packets are like one: of both, since a hold-out that has lost nothing
	// yet cannot show how losses come.
	alike := 1.0
	if chance := arm.chance() + held.chance(); chance > 0 {
		alike = max(1, (arm.scatter()+held.scatter())/chance)
	}
	both := (arm.again + held.again) / (arm.sent + held.sent)
	a, h := arm.share(), (held.again+heldPackets*both)/(held.sent+heldPackets)
	deviation := math.Sqrt(both * (1 - both) * alike * (1/arm.sent + 1/held.sent))
	return a > h+storm && a > stormFactor*h && a-h > certain*deviation
}
