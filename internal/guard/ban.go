package guard

import (
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	// A ban lasts firstBan, the next one twice as long, and so on. If as much time passes
	// without a ban, it starts over.
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

// Bans are the bans of a path, including those that have ended. There are few.
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

// Until is the end of the latest ban of cc, Unix ns; 0 if there was none.
func (bs Bans) Until(cc tcp.CC) int64 {
	for i := range bs {
		if bs[i].CC == cc {
			return bs[i].Until
		}
	}
	return 0
}

// BanLength is the length of a new ban, nanoseconds, after one from since to until (both 0
// if there was none): twice as long, or firstBan if as much time has passed without a ban.
func BanLength(since, until, now int64) int64 {
	if last := until - since; last > 0 && now-until < last {
		return min(2*last, longestBan)
	}
	return firstBan
}
