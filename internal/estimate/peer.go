package estimate

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// withoutPeer is for how long the peer option is not sent on a path once only a SYN without it was
// answered: a middlebox may drop such SYNs.
const withoutPeer = 24 * time.Hour

// Peer is what the hosts of a path told in the peer option. The zero Peer knows nothing.
type Peer struct {
	Delack  time.Duration `json:"delack_ns"`     // longest delay of ACKs that the latest one told; 0: none did
	Receive uint64        `json:"receive_bytes"` // how much it can receive at a time; 0: unknown
	At      int64         `json:"at_ns"`         // Unix nanoseconds: when that was seen
	LostAt  int64         `json:"lost_at_ns"`    // the same: a SYN with the option was sent again without it, and answered then
}

func (p *Peer) observe(s *tcp.Sample) {
	switch {
	case s.PeerDelack != 0:
		p.Delack, p.Receive, p.At = s.PeerDelack, s.PeerReceive, s.At
	case s.Has(tcp.FlagPeerResent) && s.Kind != tcp.KindFailedConnect && !s.Has(tcp.FlagLater):
		p.LostAt = s.At
	}
}

// WithoutAt reports whether SYNs are sent without the option at a time: one with it was lost within a day, and
// none with it was answered in the day before. Otherwise it was probably an ordinary loss.
func (p *Peer) WithoutAt(now int64) bool {
	lost := now - p.LostAt
	return p.LostAt != 0 && lost >= 0 && lost < int64(withoutPeer) && (p.At == 0 || p.LostAt-p.At > int64(withoutPeer))
}
