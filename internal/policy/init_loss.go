package policy

import (
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// FirstWindows bounds raised windows, initial ones and those after the first round trip, by their losses: the bound is
// halved if more than lossyWindow of the packets are lost beyond what the path loses anyway,
// and grows slowly afterwards. The zero value is no bound.
type FirstWindows struct {
	// Packets of raised windows, and all other packets, discounted by connections.
	Sent      float32 `json:"sent_packets"`
	Lost      float32 `json:"lost_packets"`
	OtherSent float32 `json:"other_sent_packets"`
	OtherLost float32 `json:"other_lost_packets"`

	Most      uint16  `json:"most_packets,omitempty"`  // greatest window; 0 is no bound
	ChangedAt int64   `json:"changed_at_ns,omitempty"` // Unix nanoseconds, of Most
	CutAt     int64   `json:"cut_at_ns,omitempty"`     // Unix nanoseconds: when it was last halved
	CutLoss   float32 `json:"cut_loss,omitempty"`      // share of the packets of raised windows that were lost then
	LoggedAt  int64   `json:"logged_at_ns,omitempty"`  // Unix nanoseconds: when that was last logged
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
	// endWindow is the greatest raised window of any rule: the bound ends there.
	endWindow = 1000
)

// raisedWindows are those of a connection that are greater than the kernel's.
type raisedWindows struct {
	most       uint16 // packets; the greater one
	sent, lost uint32 // packets of both; 0 if an earlier sample had them
}

func raisedOf(s *tcp.Sample) raisedWindows {
	w := raisedWindows{most: max(s.InitCwnd, s.ResumeCwnd)}
	if !s.Has(tcp.FlagLater) {
		w.sent = min(uint32(s.InitCwnd)+uint32(s.ResumeCwnd), sentOnce(s))
		w.lost = min(uint32(s.InitLost), w.sent)
	}
	return w
}

// raisedBy leaves out a jump to a window that the rule sets (resume_cwnd): it says nothing of windows that are computed from the
// path's metrics. Until the jump, the connection has lost nothing (path_confirmed in bpf/sockops/resume.bpf.h).
func (r *Rule) raisedBy(s *tcp.Sample) raisedWindows {
	if _, set := r.Set.Get(tcp.ResumeCwnd); !set || s.ResumeCwnd == 0 {
		return raisedOf(s)
	}
	initial := *s
	initial.ResumeCwnd, initial.InitLost = 0, 0
	return raisedOf(&initial)
}

// FirstWindow returns how many packets of windows that were computed from the path's metrics a connection sent, and how many of
// them were lost; 0 if it has no such window, or an earlier sample had them.
func (r *Rule) FirstWindow(s *tcp.Sample) (sent, lost uint32) {
	w := r.raisedBy(s)
	return w.sent, w.lost
}

// Raised reports whether a window of a connection was computed from the path's metrics.
func (r *Rule) Raised(s *tcp.Sample) bool { return r.raisedBy(s).most != 0 }

// sentOnce is the number of packets that were sent, each counted once.
func sentOnce(s *tcp.Sample) uint32 { return s.DataSegsOut - min(s.Retrans, s.DataSegsOut) }

// Observe updates the bound by a sample of a rule's connection. It reports whether windows were halved.
func (f *FirstWindows) Observe(r *Rule, s *tcp.Sample) (halved bool) {
	if f.ChangedAt-s.At > int64(clockSlack) { // the clock was set back
		f.ChangedAt, f.CutAt = s.At, s.At
	}
	once := sentOnce(s)
	all, w := raisedOf(s), r.raisedBy(s)
	f.OtherSent += float32(once-all.sent) - f.OtherSent/otherMemory
	f.OtherLost += float32(min(s.Lost-min(all.lost, s.Lost), once-all.sent)) - f.OtherLost/otherMemory
	if w.sent <= kernelWindow {
		return false // not more than without tcpilot
	}
	f.Sent += float32(w.sent) - f.Sent/firstWindowMemory
	f.Lost += float32(w.lost) - f.Lost/firstWindowMemory
	begun := s.At - int64(s.Duration)
	switch {
	case w.lost > 0 && f.Lost > (lossyWindow+f.usualLoss())*(f.Sent+firstWindowPrior):
		if begun >= f.CutAt { // otherwise it had the window that was cut
			f.halve(s.At, w.most)
			return true
		}
	case w.lost == 0 && f.Most != 0 && w.sent >= uint32(f.Most) && w.most >= f.Most && begun >= f.ChangedAt && s.At-f.ChangedAt >= int64(growthPause):
		f.ChangedAt = s.At
		if f.Most = max(smallWindow, f.Most+max(1, f.Most/windowGrowth)); f.Most >= endWindow {
			f.Most = 0
		}
	}
	return false
}

// halve halves the bound at a time in Unix ns, or the window that lost packets, if that is smaller.
func (f *FirstWindows) halve(at int64, window uint16) {
	most := max(kernelWindow, min(f.bound(at), window)/2)
	*f = FirstWindows{OtherSent: f.OtherSent, OtherLost: f.OtherLost, Most: most, ChangedAt: at, CutAt: at, CutLoss: min(1, f.Lost/max(1, f.Sent)), LoggedAt: f.LoggedAt}
}

// usualLoss is the share of packets that the path loses outside raised windows.
func (f *FirstWindows) usualLoss() float32 {
	if f.OtherSent < 1 {
		return 0
	}
	return min(1, f.OtherLost/f.OtherSent)
}

// bound is the greatest initial window in packets, 0 if none is to be raised.
func (f *FirstWindows) bound(now int64) uint16 {
	switch {
	case f == nil || f.Most == 0:
		return endWindow
	case f.Most >= smallWindow:
		return f.Most
	case f.pause(now) <= 0:
		return smallWindow
	}
	return 0
}

// pause is for how long no window is raised after even a small one was lossy.
func (f *FirstWindows) pause(now int64) time.Duration {
	left := time.Duration(f.ChangedAt-now) + windowPause
	if left > windowPause+clockSlack {
		return 0 // the clock was set back
	}
	return left
}

// mostFirst is the greatest initial window in packets by losses and by the rule's bound; 0 if none is
// to be raised. f may be nil.
func mostFirst(f *FirstWindows, ruled uint16, now int64, why *estimate.Why) uint16 {
	lossy := f.bound(now)
	switch {
	case ruled <= kernelWindow:
		why.Is(func() string {
			return fmt.Sprintf("the rule's bound, %d packets, is not more than the kernel's window", ruled)
		})
		return 0
	case lossy == 0:
		why.Is(func() string {
			return fmt.Sprintf("%.1f%% of the packets of the latest raised windows were lost, and half of such a window is less than %d packets: no window is raised for another %s",
				100*f.CutLoss, smallWindow, f.pause(now).Round(time.Second))
		})
	}
	return min(lossy, ruled)
}

// whyHalved says that losses bound the windows of a path, if they do: to less than `most` packets.
func (f *FirstWindows) whyHalved(most uint32, now int64) string {
	bound := f.bound(now)
	if bound == 0 || uint32(bound) >= most {
		return ""
	}
	return fmt.Sprintf("; raised windows were halved %s ago, because %.1f%% of their packets were lost: they are bounded by %d packets now, and the bound grows with connections without such losses",
		time.Duration(now-f.CutAt).Round(time.Second), 100*f.CutLoss, bound)
}

// MostAt is the greatest initial window at a time by losses, packets: the kernel's if none is to be raised.
func (f *FirstWindows) MostAt(now int64) uint16 { return max(kernelWindow, f.bound(now)) }
