package policy

import (
	"cmp"
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
func peerOption(m *estimate.Path, was uint16, least uint64, now int64, why *estimate.Why) uint16 {
	longest := undelayed[len(undelayed)-1]
	if m != nil && m.Peer != nil && m.Peer.WithoutAt(now) {
		why.Is(func() string {
			return fmt.Sprintf("a SYN with the option was answered only after it was sent again without it, %s ago: the option is not sent for a day", time.Duration(now-m.Peer.LostAt).Round(time.Second))
		})
		return 0
	}
	if !measuredEnough(m, false, now, why) {
		return longest
	}
	rise, above := rttRise(m), max(least, uint64(m.RTOMin.LeastAt(now).Microseconds()))
	margin := 0.
	for _, ms := range undelayed[:len(undelayed)-1] {
		margin = rtoMinMargin
		if was != 0 && ms >= was {
			margin = rtoMinMarginKept
		}
		if uint64(ms)*1000 >= above && millis(ms) >= time.Duration(margin*float64(rise)) {
			return ms
		}
	}
	why.Is(func() string {
		most := undelayed[len(undelayed)-2]
		if above > uint64(most)*1000 {
			return fmt.Sprintf("less than %s is not used, by the rule's bound or because of spurious retransmissions", time.Duration(above)*time.Microsecond)
		}
		return fmt.Sprintf("%s: %s is less than %g times that", whyRTTRise(m), millis(most), margin)
	})
	return longest
}

// whyPeerOption explains the value of a. why is why RTO_MIN is left to the kernel now; empty: it is not.
func whyPeerOption(a Adapted, m *estimate.Path, why string) string {
	if a.Peer == undelayed[len(undelayed)-1] {
		return "the option is sent, but RTO_MIN is left to the kernel: " + cmp.Or(why, "too little was known of round-trip times at the latest decision about the path")
	}
	text := whyRTTRise(m) + "; times 1.5 to 2, rounded up to the next allowed value; RTO_MIN is this and what the peer tells"
	if p := m.Peer; p != nil && p.Delack != 0 {
		text += fmt.Sprintf("; the latest told %s", p.Delack)
	}
	return text
}
