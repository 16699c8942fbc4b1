package learn

import (
	"bytes"
	"slices"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// safest orders arms of which nothing is known: first those that most of the Internet uses
// (RFC 9438, the default of Linux; RFC 5681; bbr), then those that are not in this list,
// and last those that need ECN marks from the network (RFC 8257 for dctcp).
var safest = [...]tcp.CC{tcp.CCOf("cubic"), tcp.CCOf("reno"), tcp.CCOf("bbr")}

func safety(cc tcp.CC) int {
	if i := slices.Index(safest[:], cc); i >= 0 {
		return i
	}
	if congestion.Of(cc).NeedsECN {
		return len(safest) + 1
	}
	return len(safest)
}

func before(a, b tcp.CC) bool {
	if x, y := safety(a), safety(b); x != y {
		return x < y
	}
	return bytes.Compare(a[:], b[:]) < 0
}
