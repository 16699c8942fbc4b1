package policy

import (
	"fmt"

	"github.com/tcpilot/tcpilot/internal/estimate"
)

// The initial receive window is several times what connections of the path received in a round
// trip (Hung, Zhang and Lu, "Fine-Grained TCP Tuning": beta x BDP, there over a function of the
// number of connections). A receive window is a permission: how much is sent is the sender's
// decision, and the buffer takes memory only for what has arrived. So the number of connections
// does not divide it; the greatest window bounds what a connection may take.

const (
	// receiveBeta is how many times the mean rate of a connection that never left slow start
	// is exceeded in its last round trip: with n of them, 2^(n-1) of 2^n - 1 windows are sent
	// in it, so n/2 times; most transfers take less than 8 or are long.
	receiveBeta = 4
	// receiveSegment is the number of bytes that a packet of the window stands for.
	receiveSegment = 1460
	// usualReceive is what the kernel announces at first, in packets: 64 KB, half of the
	// default of net.ipv4.tcp_rmem. mostReceive is the greatest adapted one, 1 MB, unless the
	// rule has another bound.
	usualReceive = 65536 / receiveSegment
	mostReceive  = 1 << 20 / receiveSegment
)

// receiveWindow is the initial receive window of a path in packets, 0 if the kernel's is
// enough. was is the one in use, most the greatest.
func receiveWindow(m *estimate.Path, was, most uint16, why *estimate.Why) uint16 {
	if shortPath(m, why) {
		return 0
	}
	if m.ReceiveRate.Greatest() == 0 {
		why.Is(func() string { return "no connection of the path has received enough to show a rate" })
		return 0
	}
	bytes := receiveBeta * float64(m.ReceiveRate.Greatest()) * float64(m.MinRTT.Least()) / 1e6
	w := min(bytes/receiveSegment, float64(most))
	switch {
	case w <= usualReceive || was == 0 && w < windowRise*usualReceive:
		why.Is(func() string {
			return fmt.Sprintf("%s: that is %.0f packets, and a window is raised from %.0f on (the kernel announces %d at first)", whyReceiveWindow(m), w, windowRise*usualReceive, usualReceive)
		})
		return 0
	case keeps(float64(was), w, w) && w != float64(most):
		return was
	}
	return uint16(w)
}

func whyReceiveWindow(m *estimate.Path) string {
	return fmt.Sprintf("%d times what a connection received in a least round-trip time of %s (%.1f Mbit/s)",
		receiveBeta, leastRTT(m), float64(m.ReceiveRate.Greatest())*8/1e6)
}
