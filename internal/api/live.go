package api

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// liveSlots bounds the connections that Live remembers: about 80 kB.
const liveSlots = 256

// Live keeps the latest interval sample of connections whose congestion control reports its
// state, for explanations. It is not complete: if the cookies of two connections map to the
// same slot, the one sampled last is kept. Its zero value is ready; its methods may be called
// from any goroutine.
type Live struct {
	mu    sync.Mutex
	slots [liveSlots]tcp.Sample // by cookie
}

// Observe takes a sample: *s is copied. A connection that has ended is forgotten.
func (l *Live) Observe(s *tcp.Sample) {
	if !s.CCState.Known() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	slot := &l.slots[s.Cookie%liveSlots]
	if s.Kind == tcp.KindInterval {
		*slot = *s
	} else if slot.Cookie == s.Cookie {
		*slot = tcp.Sample{}
	}
}

// Of returns the samples of connections to remote, the latest first, at most limit. Samples
// older than since are left out: such a connection is idle, or its end was not seen.
func (l *Live) Of(remote netip.Addr, since time.Time, limit int) []Sample {
	var found []tcp.Sample
	l.mu.Lock()
	for i := range l.slots {
		s := &l.slots[i]
		if s.Kind == tcp.KindInterval && s.Remote.Addr() == remote && s.At >= since.UnixNano() {
			found = append(found, *s)
		}
	}
	l.mu.Unlock()
	slices.SortFunc(found, func(a, b tcp.Sample) int { return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(a.Cookie, b.Cookie)) })
	out := make([]Sample, 0, min(limit, len(found)))
	for i := range found[:min(limit, len(found))] {
		out = append(out, FromSample(&found[i]))
	}
	return out
}
