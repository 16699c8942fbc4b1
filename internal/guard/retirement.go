package guard

import (
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	// An arm is retired for `shortest`, the next time for twice as long, and so on up to
	// `longest`. If it has then been used for as long as it was retired, the next retirement
	// takes `shortest` again.
	shortest = int64(10 * time.Minute)
	longest  = int64(24 * time.Hour)
	// early is for how long before its beginning something counts as in force: samples may be late.
	early = int64(time.Minute)
)

// InForce reports whether what a guard did for the time from since to until is in force now; all are in Unix ns. It is
// not if the clock was set back to before since: it would last for as much longer.
func InForce(since, until, now int64) bool { return now < until && since-now <= early }

// Retirement is an arm that a guard retired on a path.
type Retirement struct {
	CC    tcp.CC `json:"cc"`
	Guard string `json:"guard"`    // Kind
	Why   string `json:"why"`      // with figures
	Since int64  `json:"since_ns"` // Unix ns
	Until int64  `json:"until_ns"` // Unix ns; from then on it is used again
}

// Retirements are those of a path, including those that have ended. There are few.
type Retirements []Retirement

// Add retires an arm on the path at now, Unix ns, and returns until when.
func (rs *Retirements) Add(cc tcp.CC, which Kind, why string, now int64) (until int64) {
	i := slices.IndexFunc(*rs, func(r Retirement) bool { return r.CC == cc })
	if i < 0 {
		i = len(*rs)
		*rs = append(*rs, Retirement{CC: cc})
	}
	r := &(*rs)[i]
	*r = Retirement{CC: cc, Guard: which.String(), Why: why, Since: now, Until: now + Length(r.Until-r.Since, now-r.Until)}
	return r.Until
}

// InForce reports whether the arm is retired now, Unix ns.
func (r *Retirement) InForce(now int64) bool { return InForce(r.Since, r.Until, now) }

// Retires reports whether cc is retired now, Unix ns.
func (rs Retirements) Retires(cc tcp.CC, now int64) bool {
	return slices.ContainsFunc(rs, func(r Retirement) bool { return r.CC == cc && r.InForce(now) })
}

// Length is for how long a guard acts now, nanoseconds, if it acted for last before, and what it
// acted on was in use for used since (both 0 if it did not act before): twice as long, or
// shortest if it was in use for as long as the guard had acted.
func Length(last, used int64) int64 {
	if last > 0 && used < last {
		return min(2*last, longest)
	}
	return shortest
}
