package api

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestLiveRemembersTheLatest(t *testing.T) {
	var l Live
	begin := time.Unix(1000, 0)
	near, far := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")
	observe := func(cookie uint64, remote netip.Addr, kind tcp.Kind, after time.Duration, known bool) {
		s := tcp.Sample{Kind: kind, Cookie: cookie, Remote: netip.AddrPortFrom(remote, 443), At: begin.Add(after).UnixNano()}
		s.CC, _ = tcp.ParseCC("tcpilot_dctcp")
		if known {
			s.CCState = tcp.CCState{Mode: 1, WMax: uint32(after / time.Second), Flags: tcp.CCFlagKnown}
		}
		l.Observe(&s)
	}
	expect := func(what string, remote netip.Addr, since time.Duration, limit int, cookies ...uint64) {
		t.Helper()
		got := l.Of(remote, begin.Add(since), limit)
		if len(got) != len(cookies) {
			t.Fatalf("%s: %+v, want %d", what, got, cookies)
		}
		for i, c := range cookies {
			if got[i].Cookie != c || got[i].CCState == nil || got[i].CCState.Mode != "avoidance" {
				t.Errorf("%s: number %d is %+v, want %d", what, i, got[i], c)
			}
		}
	}
	expect("nothing", near, 0, 10)
	observe(1, near, tcp.KindInterval, time.Second, true)
	observe(2, near, tcp.KindInterval, 2*time.Second, true)
	observe(3, far, tcp.KindInterval, 3*time.Second, true)
	observe(4, near, tcp.KindInterval, 4*time.Second, false) // bbr, say
	observe(5, near, tcp.KindClose, 4*time.Second, true)     // never seen live
	expect("two", near, 0, 10, 2, 1)
	expect("IPv6", far, 0, 10, 3)
	expect("limit", near, 0, 1, 2)
	expect("lately", near, 2*time.Second, 10, 2)
	observe(1, near, tcp.KindInterval, 5*time.Second, true)
	expect("again", near, 0, 10, 1, 2)
	if got := l.Of(near, begin, 1)[0].CCState.WMax; got != 5 {
		t.Errorf("the sample of %d s is kept", got)
	}
	observe(1+liveSlots, near, tcp.KindInterval, 6*time.Second, true)
	expect("a slot shared", near, 0, 10, 1+liveSlots, 2)
	observe(1, near, tcp.KindClose, 7*time.Second, true) // somebody else's slot by now
	observe(2, near, tcp.KindClose, 7*time.Second, true)
	expect("one has ended", near, 0, 10, 1+liveSlots)
}

func TestLiveDoesNotAllocate(t *testing.T) {
	var l Live
	s := tcp.Sample{Kind: tcp.KindInterval, Cookie: 7, CCState: tcp.CCState{Flags: tcp.CCFlagKnown}}
	if n := testing.AllocsPerRun(100, func() { l.Observe(&s) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
