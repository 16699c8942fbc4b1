package policy

import (
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
)

// With the peer option, two hosts tell each other by how long they delay ACKs at most. Then RTO_MIN
// need not allow for the 40 ms that any Linux host may take, only for what this peer told. The value
// computed here is what the path needs if ACKs are not delayed; a BPF program adds the peer's delay.

// undelayed are the values that a path may have, in milliseconds. Few of them, so that policies
// rarely change; the last one leaves RTO_MIN to the kernel.
var undelayed = [...]uint16{1, 2, 5, 10, 25, 50, 100, 200}

// peerOption is the least RTO_MIN in milliseconds that is long enough for the path if ACKs are not
// delayed; 200: as long as nothing is known of its round trips. 0: the option is not sent, because
// a SYN with it was lost. was is the one in use, or 0; least is the rule's bound of RTO_MIN
// in microseconds.
func peerOption(m *estimate.Path, was uint16, least uint64, now int64) uint16 {
	longest := undelayed[len(undelayed)-1]
	if m == nil {
		return longest
	}
	if m.Peer != nil && m.Peer.WithoutAt(now) {
		return 0
	}
	if m.SRTT == 0 || m.RTTs < metricsSamples || !recent(m.RTTAt, now, metricsAge) {
		return longest
	}
	rise, above := rttRise(m), max(least, uint64(m.RTOMin.LeastAt(now).Microseconds()))
	for _, ms := range undelayed {
		margin := time.Duration(rtoMinMargin * float64(rise))
		if was != 0 && ms >= was {
			margin = time.Duration(rtoMinMarginKept * float64(rise))
		}
		if uint64(ms)*1000 >= above && time.Duration(ms)*time.Millisecond >= margin {
			return ms
		}
	}
	return longest
}

func whyPeerOption(a Adapted, m *estimate.Path) string {
	if a.Peer == undelayed[len(undelayed)-1] {
		return "the option is sent, but RTO_MIN is left to the kernel: too little is known of round-trip times, or they vary too much"
	}
	why := fmt.Sprintf("srtt %s + 4 x rttvar %s is %s above the least round-trip time; times 1.5 to 2, rounded up to the next allowed value; RTO_MIN is this and what the peer tells",
		micros(m.SRTT), micros(m.RTTVar), rttRise(m).Round(100*time.Microsecond))
	if p := m.Peer; p != nil && p.Delack != 0 {
		why += fmt.Sprintf("; the latest told %s", p.Delack)
	}
	return why
}
