package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// WhyAdapted explains a value of a, which is in use, by the metrics that led to it.
func (in *Input) WhyAdapted(f tcp.Field, a Adapted) string {
	m := in.Metrics
	switch f {
	case tcp.InitCwnd, tcp.ResumeCwnd:
		return whyWindow(f, a, m) + in.First.whyHalved(min(a.Window, uint32(in.Rule.mostRaised(f))), in.Now)
	case tcp.InitRwnd:
		return whyReceiveWindow(m) + "; the kernel goes on tuning the buffer"
	case tcp.RTOMin:
		return whyRTOMin(a, m)
	case tcp.PeerOption:
		_, why := in.adapt(f)
		return whyPeerOption(a, m, why)
	case tcp.DelackMax:
		return whyDelackMax(m)
	case tcp.MaxPacingRate:
		return WhyRateLimit(m)
	case tcp.CwndClamp:
		return whyClamp(m)
	}
	return whyRTTBound(m) + "; times 2 to 2.5, rounded up to the next allowed timeout"
}

func whyRTTBound(m *estimate.Path) string {
	return fmt.Sprintf("srtt %s + 4 x rttvar %s is %s", micros(m.SRTT), micros(m.RTTVar), rttBound(m).Round(100*time.Microsecond))
}

func millis(ms uint16) time.Duration { return time.Duration(ms) * time.Millisecond }

func micros(us float32) time.Duration {
	return (time.Duration(us) * time.Microsecond).Round(100 * time.Microsecond)
}

// adapt computes the value of one field, and why it is 0, or of the peer option the kernel's.
func (in *Input) adapt(f tcp.Field) (v uint64, why string) {
	var (
		a Adapted
		w estimate.Why
	)
	in.Rule.adapt(&a, f, &evidence{in.Metrics, in.First, in.Adapted, in.Now}, &w)
	return a.Value(f), w.String()
}

// WhyKernel says why connections of the path have the kernel's value of a field that the rule adapts.
func (in *Input) WhyKernel(f tcp.Field) string {
	if in.LeftToDefault {
		return "connections did worse than the hold-out: all is left to kernel defaults for now"
	}
	v, reason := in.adapt(f)
	switch {
	case v == 0 && RaisesWindow(f):
		return reason + in.First.whyHalved(uint32(in.Rule.mostRaised(f)), in.Now)
	case v == 0:
		return reason
	}
	var why estimate.Why
	value := strings.TrimSpace(fmt.Sprintf("%d %s", v, tcp.Fields[f].Unit))
	if share, _ := in.heldOut(in.Slice != 0); in.allHeldOut(share, &why) {
		return why.String() + "; otherwise it would be " + value
	}
	return "the latest samples lead to " + value + ", which connections get after the next decision about the path"
}
