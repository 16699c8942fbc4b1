package policy

import (
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// The initial window of a connection is its share of what the path has shown to hold: the
// greatest slow start threshold of the latest seconds, over the number of connections (Hung,
// Zhang and Lu, "Fine-Grained TCP Tuning", adaptive initial window). The programs divide, as
// they know the number when a connection begins. Unlike there, it is never less than the
// kernel's window.

const (
	// kernelWindow is the initial window of the kernel, packets (RFC 6928; TCP_INIT_CWND).
	kernelWindow = 10
	// mostWindow is the greatest adapted one. Most receivers do not accept more at first than
	// 64 KB (tcp_select_initial_window), which is 45 packets of 1448 bytes.
	mostWindow = 64
	// windowAge is how long the threshold is used after the latest sample that had one.
	windowAge = time.Minute
	// leastWindowRTT is the least round-trip time of paths with an adapted window: on a
	// shorter one, a round trip saved is little, and switches with shallow buffers are usual.
	leastWindowRTT = time.Millisecond

	// busyPath and fullPath are the ratios of the smoothed round-trip time to the least one
	// from which half of the threshold is used, and none of it (8 and 16 in the paper).
	busyPath = 8
	fullPath = 16

	// A threshold that is up to windowRise times the one in use, and not below windowFall
	// times, does not replace it, so that policies are not written at every sample.
	windowRise = 1.5
	windowFall = 0.8
)

// window is the number of packets that new connections share, 0 if the path has not shown any.
func window(m *estimate.Path, was uint32, now int64) uint32 {
	if age := time.Duration(now - m.SsthreshAt); m.SsthreshAt == 0 || age > windowAge || age < -clockSlack {
		return 0
	}
	least := time.Duration(m.MinRTT.Least()) * time.Microsecond
	if least < leastWindowRTT {
		return 0
	}
	w := m.Ssthresh.Greatest()
	switch ratio := float64(m.SRTT) / float64(least/time.Microsecond); {
	case ratio >= fullPath:
		return 0
	case ratio >= busyPath:
		w /= 2
	}
	if w <= kernelWindow {
		return 0
	}
	if f := float64(w); f >= windowFall*float64(was) && f <= windowRise*float64(was) {
		return was
	}
	return uint32(w)
}

// WindowExpires is when the threshold of m is too old, Unix nanoseconds.
func WindowExpires(m *estimate.Path) int64 { return m.SsthreshAt + int64(windowAge) }

// WindowRenewed reports whether a window that expires at the one time is worth writing again,
// because by now it expires at the other.
func WindowRenewed(expires, now int64) bool { return now-expires > int64(windowAge)/2 }

// FirstWindows bounds the initial window by the losses of raised initial windows: it is
// halved where more than lossyWindow of the packets are lost beyond what the path loses
// anyway, and grows slowly afterwards. The zero value is no bound.
type FirstWindows struct {
	sent, lost float32 // packets, discounted by connections
	most       uint16  // packets; 0 is no bound
	cutAt      int64   // Unix nanoseconds
}

const (
	lossyWindow = 0.02
	// firstWindowMemory is the number of connections over which losses are averaged.
	firstWindowMemory = 8
	// windowPause is how long no window is raised after even a small one was lossy.
	windowPause = time.Minute
	// windowGrowth is by which part of itself, and at least by one packet, the bound grows
	// with a connection that was not lossy.
	windowGrowth = 16
	// smallWindow is the least raised window.
	smallWindow = kernelWindow * 3 / 2
)

// Observe updates the bound by a sample; loss is the share of packets that the path loses.
func (f *FirstWindows) Observe(s *tcp.Sample, loss float64) {
	if s.InitCwnd == 0 {
		return
	}
	f.sent += float32(s.InitCwnd) - f.sent/firstWindowMemory
	f.lost += float32(min(s.InitLost, s.InitCwnd)) - f.lost/firstWindowMemory
	switch {
	case s.InitLost > 0 && float64(f.lost) > (lossyWindow+loss)*float64(f.sent):
		*f = FirstWindows{most: max(kernelWindow, s.InitCwnd/2), cutAt: s.At}
	case f.most != 0:
		if f.most += max(1, f.most/windowGrowth); f.most >= mostWindow {
			f.most = 0
		}
	}
}

// bound is the greatest initial window in packets, 0 if none is to be raised.
func (f *FirstWindows) bound(now int64) uint16 {
	switch {
	case f == nil || f.most == 0:
		return mostWindow
	case f.most >= smallWindow:
		return f.most
	case now-f.cutAt >= int64(windowPause):
		return smallWindow
	}
	return 0
}

// whyWindow explains the adapted initial window.
func whyWindow(a Adapted, m *estimate.Path) string {
	return fmt.Sprintf("%d packets (greatest ssthresh of the latest 15 to 30 s), shared by the path's connections, at most %d for each; srtt is %.1f times the least round-trip time",
		a.Window, a.InitCwnd, float64(m.SRTT)/float64(max(1, m.MinRTT.Least())))
}
