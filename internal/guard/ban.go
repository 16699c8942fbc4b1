package guard

import (
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	// An arm comes back after firstBan, after twice that the next time, and so on; after
	// as long a time without, it starts over.
	firstBan   = int64(10 * time.Minute)
	longestBan = int64(24 * time.Hour)
)

// Ban is an arm that a guard took from a path.
type Ban struct {
	CC    tcp.CC `json:"cc"`
	Guard string `json:"guard"` // Kind
	Why   string `json:"why"`   // with figures
	Since int64  `json:"since"` // Unix ns
	Until int64  `json:"until"` // Unix ns; later it is an arm again
}

// Bans are those of a path, including arms that are back. They are few.
type Bans []Ban

// Add takes an arm from the path at now, Unix ns, and returns until when.
func (bs *Bans) Add(cc tcp.CC, which Kind, why string, now int64) (until int64) {
	i := slices.IndexFunc(*bs, func(b Ban) bool { return b.CC == cc })
	if i < 0 {
		i = len(*bs)
		*bs = append(*bs, Ban{CC: cc})
	}
	b := &(*bs)[i]
	*b = Ban{CC: cc, Guard: which.String(), Why: why, Since: now, Until: now + BanLength(b.Since, b.Until, now)}
	return b.Until
}

// Until is the time up to which cc is no arm of the path, Unix ns; 0 if it always was.
func (bs Bans) Until(cc tcp.CC) int64 {
	for i := range bs {
		if bs[i].CC == cc {
			return bs[i].Until
		}
	}
	return 0
}

// BanLength is how long a ban lasts, nanoseconds, after one from since to until: twice as
// long, unless as long a time has passed without. Both 0: there was none.
func BanLength(since, until, now int64) int64 {
	if last := until - since; last > 0 && now-until < last {
		return min(2*last, longestBan)
	}
	return firstBan
}
