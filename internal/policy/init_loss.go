package policy

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// FirstWindows bounds the initial window by the losses of raised initial windows: it is
// halved if more than lossyWindow of the packets are lost beyond what the path loses anyway,
// and grows slowly afterwards. The zero value is no bound.
type FirstWindows struct {
	sent, lost           float32 // packets of raised windows, discounted by connections
	otherSent, otherLost float32 // all other packets
	most                 uint16  // packets; 0 is no bound
	changedAt            int64   // Unix nanoseconds, of most
	cutAt                int64   // Unix nanoseconds, of the latest cut
}

const (
	lossyWindow = 0.02
	// firstWindowMemory is the number of connections over which losses are averaged, and
	// otherMemory the same of other packets.
	firstWindowMemory = 8
	otherMemory       = 64
	// firstWindowPrior is a number of packets without loss that is added, so that one lost
	// packet of a small window is not a share of several percent.
	firstWindowPrior = 128
	// windowPause is how long no window is raised after even a small one was lossy.
	windowPause = time.Minute
	// The bound grows by 1/windowGrowth of itself, and at least by one packet, after each
	// growthPause in which a connection has used it without losses.
	windowGrowth = 16
	growthPause  = time.Second
	// endWindow is the greatest initial window of any rule: the bound ends there.
	endWindow = 1000
)

// Observe updates the bound by a sample.
func (f *FirstWindows) Observe(s *tcp.Sample) {
	once := s.DataSegsOut - min(s.Retrans, s.DataSegsOut) // packets that were sent, each once
	sent, lost := uint32(0), uint32(0)
	if s.InitCwnd != 0 && !s.Has(tcp.FlagLater) {
		sent = min(uint32(s.InitCwnd), once)
		lost = min(uint32(s.InitLost), sent)
	}
	f.otherSent += float32(once-sent) - f.otherSent/otherMemory
	f.otherLost += float32(min(s.Lost-min(lost, s.Lost), once-sent)) - f.otherLost/otherMemory
	if sent <= kernelWindow {
		return // not more than without tcpilot
	}
	f.sent += float32(sent) - f.sent/firstWindowMemory
	f.lost += float32(lost) - f.lost/firstWindowMemory
	begun := s.At - int64(s.Duration)
	switch {
	case lost > 0 && f.lost > (lossyWindow+f.usualLoss())*(f.sent+firstWindowPrior):
		if begun >= f.cutAt { // otherwise it had the window that was cut
			f.halve(s)
		}
	case lost == 0 && f.most != 0 && sent >= uint32(f.most) && begun >= f.changedAt && s.At-f.changedAt >= int64(growthPause):
		f.changedAt = s.At
		if f.most = max(smallWindow, f.most+max(1, f.most/windowGrowth)); f.most >= endWindow {
			f.most = 0
		}
	}
}

func (f *FirstWindows) halve(s *tcp.Sample) {
	most := max(kernelWindow, min(f.bound(s.At), s.InitCwnd)/2)
	*f = FirstWindows{otherSent: f.otherSent, otherLost: f.otherLost, most: most, changedAt: s.At, cutAt: s.At}
}

// usualLoss is the share of packets that the path loses outside raised windows.
func (f *FirstWindows) usualLoss() float32 {
	if f.otherSent < 1 {
		return 0
	}
	return min(1, f.otherLost/f.otherSent)
}

// bound is the greatest initial window in packets, 0 if none is to be raised.
func (f *FirstWindows) bound(now int64) uint16 {
	switch {
	case f == nil || f.most == 0:
		return endWindow
	case f.most >= smallWindow:
		return f.most
	case now-f.changedAt >= int64(windowPause):
		return smallWindow
	}
	return 0
}
