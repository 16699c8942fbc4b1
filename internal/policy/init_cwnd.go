package policy

import (
	"fmt"
	"math"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// The initial window of a connection is its share of what the path has shown to hold, over the
// number of the path's connections (after Hung, Zhang and Lu, "Fine-Grained TCP Tuning",
// adaptive initial window). The programs divide, because they know the number when a connection
// begins. docs/design/0013-initial-windows.md has the differences from the paper, and why.

const (
	// kernelWindow is the initial window of the kernel, packets (RFC 6928; TCP_INIT_CWND).
	kernelWindow = 10
	// mostWindow is the greatest adapted one, and mostResumed the greatest after the first round trip, unless the rule has
	// another bound.
	mostWindow  = 64
	mostResumed = 1000
	// windowAge is how long a window is used after the latest sample that showed it.
	windowAge = time.Minute
	// leastWindowRTT is the least round-trip time of paths with an adapted window: on a
	// shorter one, a round trip saved is little, and switches with shallow buffers are usual.
	leastWindowRTT = time.Millisecond

	// Connections fill the path if the smoothed round-trip time is at least filledRTT times the
	// least one, filledEnds times while no window is in use, so that a window does not come
	// and go; or if the share of lost packets is at least filledLoss.
	filledRTT, filledEnds = 1.35, 1.15
	filledLoss            = 0.002
	// freeRTT is the ratio up to which the path has room for all that it has shown to hold; less and less up to filledRTT.
	freeRTT = 1.05
	// A ratio that changes by stretchSlack alone does not replace the window in use.
	stretchSlack = 0.08

	// A window that is up to windowRise times the one in use, and not below windowFall times,
	// does not replace it, so that policies are not written at every sample.
	windowRise = 1.5
	windowFall = 0.8
	// smallWindow is the least window that is raised where none was.
	smallWindow = kernelWindow * 3 / 2
)

// RaisesWindow reports whether f is a window that adapting raises, for which the path's connections share what it holds.
func RaisesWindow(f tcp.Field) bool { return f == tcp.InitCwnd || f == tcp.ResumeCwnd }

// raised is the greatest adapted initial window, or window after the first round trip, of a connection; 0 if it is not to be
// raised. It sets the window that the path's connections share.
func (r *Rule) raised(a *Adapted, f tcp.Field, ev *evidence, why *estimate.Why) uint16 {
	most := mostFirst(ev.first, uint16(r.mostRaised(f)), ev.now, why)
	if most == 0 {
		return 0
	}
	a.Window = window(ev.metrics, ev.was.Window, ev.now, why)
	return uint16(min(uint32(most), a.Window))
}

// mostRaised is the rule's bound of an initial window, or of a window after the first round trip.
func (r *Rule) mostRaised(f tcp.Field) uint64 {
	if f == tcp.ResumeCwnd {
		return r.bound(f, mostResumed)
	}
	return r.bound(f, mostWindow)
}

// window is the number of packets that new connections share; 0 if the path has not shown
// any, or is filled. was is the one in use.
func window(m *estimate.Path, was uint32, now int64, why *estimate.Why) uint32 {
	if shortPath(m, why) || filled(m, was, why) || !holdsKnown(m, now, why) {
		return 0
	}
	carried := float64(m.Carried.Greatest())
	w := carried * room(stretch(m))
	slack := min(stretchSlack, (filledRTT-stretch(m))/2) // so that the window falls to nothing step by step
	switch {
	case w <= kernelWindow || was == 0 && w < smallWindow:
		why.Is(func() string {
			return fmt.Sprintf("connections had at most %.0f packets in flight together without a loss, and srtt is %.2f times the least round-trip time, which leaves %.0f: a window is raised from %d on",
				carried, stretch(m), w, smallWindow)
		})
		return 0
	case keeps(float64(was), carried*room(stretch(m)+slack), carried*room(stretch(m)-slack)):
		return was
	}
	return uint32(math.Round(w))
}

// room is the share of what a path has shown to hold that new connections get. While others build a queue, it falls step by step
// and not at once: if all windows went back to the kernel's, the queue would go, the windows would come back, and connections would
// meet the queue again while they are in slow start.
func room(stretch float64) float64 {
	return min(1, max(0, (filledRTT-stretch)/(filledRTT-freeRTT)))
}

// holdsKnown reports whether the path has shown lately how many packets it holds.
func holdsKnown(m *estimate.Path, now int64, why *estimate.Why) bool {
	if m.CarriedAt == 0 {
		why.Is(func() string {
			return fmt.Sprintf("no connection had more than %d packets in flight without a loss yet: how many the path holds is not known", kernelWindow)
		})
		return false
	}
	return isRecent("the latest number of packets that the path held", m.CarriedAt, now, windowAge, why)
}

// keeps reports whether a window in use is so close to the computed one, which is between two values, that it stays.
func keeps(was, least, most float64) bool { return most >= windowFall*was && least <= windowRise*was }

// shortPath reports whether the round trips of a path are too short for adapted windows.
func shortPath(m *estimate.Path, why *estimate.Why) bool {
	if leastRTT(m) >= leastWindowRTT {
		return false
	}
	why.Is(func() string {
		if leastRTT(m) == 0 {
			return "the least round-trip time is not known"
		}
		return fmt.Sprintf("the least round-trip time is %s: windows are raised from %s on", leastRTT(m), leastWindowRTT)
	})
	return true
}

// leastRTT is the least round-trip time of a path; 0 if it is not known.
func leastRTT(m *estimate.Path) time.Duration {
	return time.Duration(m.MinRTT.Least()) * time.Microsecond
}

// knownShort reports whether the round trips of a path are so much shorter than leastWindowRTT that its windows and its
// pacing rate stay the kernel's. An idle path stays short: it has to show that it is longer before anything is adapted.
// One whose connections are all followed has to be shorter: each change has all sockets of the host looked at.
func knownShort(m *estimate.Path, followed bool) bool {
	most := leastWindowRTT / 2
	if followed {
		most = leastWindowRTT * 2 / 5
	}
	return m != nil && m.RTTs >= metricsSamples && leastRTT(m) != 0 && leastRTT(m) < most
}

// filled reports whether connections fill the path. was is the window in use; 0: none.
func filled(m *estimate.Path, was uint32, why *estimate.Why) bool {
	most := filledRTT
	if was == 0 {
		most = filledEnds
	}
	if float64(m.SRTT) >= most*float64(m.MinRTT.Least()) {
		why.Is(func() string {
			return fmt.Sprintf("connections fill the path: srtt %s is %.2f times the least round-trip time, %s (a window needs less than %g times)",
				micros(m.SRTT), stretch(m), leastRTT(m), most)
		})
		return true
	}
	loss, _ := m.Loss()
	if loss < filledLoss {
		return false
	}
	why.Is(func() string {
		return fmt.Sprintf("%.2f%% of the recent packets were lost (a window needs less than %g%%)", 100*loss, 100*filledLoss)
	})
	return true
}

// stretch is the ratio of the smoothed round-trip time to the least one.
func stretch(m *estimate.Path) float64 { return float64(m.SRTT) / float64(max(1, m.MinRTT.Least())) }

// WindowExpires is when what the path has shown is too old, Unix nanoseconds.
func WindowExpires(m *estimate.Path) int64 { return m.CarriedAt + int64(windowAge) }

// WindowRenewed reports whether a window that was written with one time of expiry is worth
// writing again with the present one; both are in Unix nanoseconds.
func WindowRenewed(written, present int64) bool { return present-written > int64(windowAge)/2 }

// whyWindow explains the adapted initial window, or the window after the first round trip.
func whyWindow(f tcp.Field, a Adapted, m *estimate.Path) string {
	return fmt.Sprintf("%d packets are shared by the path's connections, at most %d for each: connections had %d in flight together without a loss; srtt is %.2f times the least round-trip time",
		a.Window, a.Value(f), m.Carried.Greatest(), stretch(m))
}
