package guard

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// RetransmitStorm compares shares of retransmitted packets. The losses of one connection
// are correlated: an overflowing queue drops half of a round trip. So the packets of a
// connection count as fewer than they are.

const (
	// An arm's share of retransmits must exceed the hold-out's by storm, and be stormFactor
	// times the hold-out's.
	storm       = 0.05
	stormFactor = 2
	// mostIndependent is the greatest number of independent packets that one connection counts
	// as; a connection of that many packets counts as half of it (as learn's halfPackets). By
	// Kish's design effect this is a correlation of 1/50 between the losses of a connection.
	// If the observed correlation is greater, scatter corrects for it.
	mostIndependent = 50
	// holdOutPackets packets with the common share of retransmits are added to the
	// hold-out's, as learn's lossPackets are to a connection's: a few packets without loss do
	// not prove a share of 0.
	holdOutPackets = 100
	// liveWeight is what a sample of a live connection counts for: learn's
	// intervalWeight.
	liveWeight = 0.5
)

// packets are sums over connections, each weighted as above.
type packets struct {
	sent    float64 // data packets, retransmits included
	retrans float64 // retransmits
	// Sums of sent squared, sent times retrans, and retrans squared: how much connections differ.
	sent2, sentRetrans, retrans2 float64
}

func (p *packets) add(s *tcp.Sample) {
	w := 1.0
	if s.Kind == tcp.KindInterval {
		w = liveWeight
	}
	perPacket := mostIndependent / (mostIndependent + float64(max(s.DataSegsOut, s.Retrans))) // what one packet counts as
	sent, retrans := perPacket*float64(max(s.DataSegsOut, s.Retrans)), perPacket*float64(s.Retrans)
	p.sent += w * sent
	p.retrans += w * retrans
	p.sent2 += w * sent * sent
	p.sentRetrans += w * sent * retrans
	p.retrans2 += w * retrans * retrans
}

func (p *packets) fade() {
	p.sent /= 2
	p.retrans /= 2
	p.sent2 /= 2
	p.sentRetrans /= 2
	p.retrans2 /= 2
}

// share is the share of the packets that were retransmitted.
func (p *packets) share() float64 {
	if p.sent == 0 {
		return 0
	}
	return p.retrans / p.sent
}

// scatter is the sum over connections of the squared difference between their retransmits
// and the common share of their packets; chance is what it would be if losses were
// independent.
func (p *packets) scatter() float64 {
	r := p.share()
	return max(0, p.retrans2-2*r*p.sentRetrans+r*r*p.sent2)
}

func (p *packets) chance() float64 {
	r := p.share()
	return p.sent * r * (1 - r)
}

// stormy reports whether an arm retransmits a significantly and much greater share of its
// packets than the hold-out.
func stormy(arm, holdOut *packets) bool {
	if arm.sent == 0 || holdOut.sent == 0 {
		return false
	}
	// How many packets count as one, over arm and hold-out together: a hold-out without
	// losses does not show how losses are correlated.
	designEffect := 1.0
	if chance := arm.chance() + holdOut.chance(); chance > 0 {
		designEffect = max(1, (arm.scatter()+holdOut.scatter())/chance)
	}
	common := (arm.retrans + holdOut.retrans) / (arm.sent + holdOut.sent)
	a, h := arm.share(), (holdOut.retrans+holdOutPackets*common)/(holdOut.sent+holdOutPackets)
	deviation := math.Sqrt(common * (1 - common) * designEffect * (1/arm.sent + 1/holdOut.sent))
	return a > h+storm && a > stormFactor*h && a-h > certain*deviation
}
