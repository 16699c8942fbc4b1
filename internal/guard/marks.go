package guard

import (
	"fmt"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// MarksLost: an arm that needs ECN responds to marks, and is worse than Reno without them. A
// path that has been shown to mark may stop: its route changes to a queue that drops instead, or
// the peer stops negotiating ECN.

const (
	// unmarkedMost is the number of connections in a row, each with lost packets and no mark or
	// established without ECN, from which the path counts as one that does not mark.
	unmarkedMost = 8
	// unmarkedApart is how many of them must not overlap in time.
	unmarkedApart = 3
)

// unmarked counts the latest consecutive connections of an arm that should have got a mark
// and did not.
type unmarked struct {
	n       int
	without int // of these, without ECN
	// apart is how many of them began after the one counted before had ended: connections that
	// overlap may all lose packets in one burst, which overflows any queue. end is when the
	// latest of them ended, Unix ns.
	apart int
	end   int64
}

func (u *unmarked) add(s *tcp.Sample) {
	u.n++
	if s.At-int64(s.Duration) >= u.end || u.end-s.At > early { // or the clock was set back
		u.apart++
		u.end = s.At
	}
}

func (u *unmarked) tooMany() bool { return u.n >= unmarkedMost && u.apart >= unmarkedApart }

// observe counts a connection that lost packets without a mark. A mark ends the row.
func (u *unmarked) observe(s *tcp.Sample) {
	switch {
	case s.DeliveredCE > 0:
		*u = unmarked{}
	case s.Kind == tcp.KindClose && (s.Lost > 0 || s.Retrans > 0):
		u.add(s)
	}
}

func (u *unmarked) why() string {
	switch u.without {
	case 0:
		return fmt.Sprintf("%d connections in a row lost packets and received no mark", u.n)
	case u.n:
		return fmt.Sprintf("%d connections in a row were made without ECN, which it needs", u.n)
	}
	return fmt.Sprintf("%d connections in a row received no mark: %d were made without ECN, the others lost packets", u.n, u.without)
}
