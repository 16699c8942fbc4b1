package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
)

// renderNetworks writes the metrics of each path.
func (a *app) renderNetworks(w io.Writer, l api.PathList) {
	if noPaths(w, &l) {
		return
	}
	t := console.NewTable("PREFIX", "RULE", "TYPE", ">MIN RTT", ">RTT", ">SSTHRESH", ">CARRIED", ">LOSS", ">RATE", ">RECEIVE RATE", ">RATE LIMIT", ">ACTIVE", ">MEASURED")
	for _, p := range l.Paths {
		m := &p.PathMetrics
		t.Row(fmtPrefix(p.Prefix), p.Rule, m.NetworkType, fmtMicros(m.MinRTT), fmtMicros(m.SRTT), fmtPackets(m.Ssthresh), fmtPackets(m.Carried), fmtLoss(m),
			fmtRate(float64(m.Rate)), fmtRate(float64(m.ReceiveRate)), fmtRate(float64(m.RateLimit)), fmtActive(m), fmtAgo(l.At, m.Updated))
	}
	t.Fit(a.Width)
	t.Write(w, a.Paint, "")
	for _, p := range l.Paths {
		if p.RateLimitWhy != "" {
			fmt.Fprintf(w, "%s: %s\n", fmtPrefix(p.Prefix), p.RateLimitWhy)
		}
		if b := p.RTOMinBarred; b != nil {
			fmt.Fprintf(w, "%s: RTO_MIN %s\n", fmtPrefix(p.Prefix), fmtBarred(b, l.At))
		}
	}
	for _, p := range l.Paths {
		if p.Peer != nil {
			fmt.Fprintf(w, "%s: %s\n", fmtPrefix(p.Prefix), fmtPeer(p.Peer, l.At))
		}
	}
	a.renderPathCount(w, &l)
}

// fmtPeer says what the latest host of a path told in the peer option.
func fmtPeer(p *engine.PeerTold, now time.Time) string {
	var told []string
	if p.Delack != 0 {
		s := fmt.Sprintf("peer delays ACKs by %s at most", fmtDuration(p.Delack))
		if p.Receive != 0 {
			s += fmt.Sprintf(", receives up to %s at a time", fmtBytes(p.Receive))
		}
		told = append(told, s+" (told "+fmtAgo(now, p.At)+")")
	}
	if !p.LostAt.IsZero() {
		told = append(told, "a SYN with the peer option was answered only without it ("+fmtAgo(now, p.LostAt)+")")
	}
	return strings.Join(told, "; ")
}

// fmtBarred says which value of RTO_MIN is not used, and for how long.
func fmtBarred(b *engine.BarredRTOMin, now time.Time) string {
	return fmt.Sprintf("%s and less are not used for %s: they caused spurious retransmissions", fmtDuration(b.RTOMin), console.Span(b.Until.Sub(now)))
}

// fmtPackets writes a number of packets; 0 is unknown.
func fmtPackets(n uint64) string {
	if n == 0 {
		return console.None
	}
	return fmtCount(n)
}

// fmtActive writes the number of established connections of a path.
func fmtActive(m *engine.PathMetrics) string {
	if m.Active == nil {
		return console.None
	}
	return fmtCount(uint64(*m.Active))
}

// fmtLoss writes which share of the data packets of a path was lost.
func fmtLoss(m *engine.PathMetrics) string { return fmtOfPackets(m.LossShare, m.DataSegs) }
