package estimate

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// withoutPeer is for how long the peer option is not sent on a path after a SYN with it was lost and
// one without it was answered: a middlebox may drop SYNs with unknown options.
const withoutPeer = 24 * time.Hour

// Peer is what the hosts of a path told in the peer option. The zero Peer knows nothing.
type Peer struct {
	Delack  time.Duration `json:"delack_ns"`     // longest delay of ACKs that the latest one told; 0: none did
	Receive uint64        `json:"receive_bytes"` // how much it can receive at a time; 0: unknown
	At      int64         `json:"at_ns"`         // Unix nanoseconds: when that was seen
	// AnsweredAt is when a SYN with the option was answered, with or without the option. LostAt is when a
	// connection was sampled whose SYN was answered only after it was sent again without the option.
	// Both are in Unix nanoseconds.
	AnsweredAt int64 `json:"answered_at_ns"`
	LostAt     int64 `json:"lost_at_ns"`
}

func (p *Peer) observe(s *tcp.Sample) {
	if s.PeerDelack != 0 {
		p.Delack, p.Receive, p.At = s.PeerDelack, s.PeerReceive, s.At
	}
	if !s.Has(tcp.FlagOutgoing|tcp.FlagPeerSent) || s.Kind == tcp.KindFailedConnect || s.Has(tcp.FlagLater) {
		return
	}
	if s.Has(tcp.FlagPeerResent) && s.PeerDelack == 0 {
		p.LostAt = s.At
	} else {
		p.AnsweredAt = s.At
	}
}

// WithoutAt reports whether SYNs are to be sent without the option at a time: a SYN with it was lost in the
// day before, and in the day before the loss none with it was answered. If one was answered, the loss
// probably had another cause.
func (p *Peer) WithoutAt(now int64) bool {
	lost := now - p.LostAt
	return p.LostAt != 0 && lost >= 0 && lost < int64(withoutPeer) && (p.AnsweredAt == 0 || p.LostAt-p.AnsweredAt > int64(withoutPeer))
}
