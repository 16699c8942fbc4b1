package guard

import (
	"fmt"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// MarksLost: an arm that needs ECN responds to marks, and is worse than Reno without them. A
// path with proof of marks may stop marking: its route changes to a queue that drops
// instead, or the peer stops negotiating ECN.

const (
	// unmarkedMost is how many connections in a row may lose packets without a mark, or
	// be made without ECN, before the path's proof of ECN is given up.
	unmarkedMost = 8
	// unmarkedApart is how many of them must be sequential.
	unmarkedApart = 3
)

// unmarked counts the latest consecutive connections of an arm that should have got a mark
// and did not.
type unmarked struct {
	n       int
	without int // of these, without ECN
	// apart of them each began after the one before had ended, the latest at end (Unix
	// ns): one burst may overflow any queue.
	apart int
	end   int64
}

func (u *unmarked) add(s *tcp.Sample) {
	u.n++
	if s.At-int64(s.Duration) >= u.end {
		u.apart++
		u.end = s.At
	}
}

func (u *unmarked) tooMany() bool { return u.n >= unmarkedMost && u.apart >= unmarkedApart }

// meet counts connections that lose packets without a mark.
func (u *unmarked) meet(s *tcp.Sample) {
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
