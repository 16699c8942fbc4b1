package datapath

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestEncodeKey(t *testing.T) {
	scoped := func(addr string) []byte {
		a := netip.MustParseAddr(addr).As16()
		return append([]byte{9, 0, 0, 0, 0, 0, 0, 0}, a[:]...)
	}
	for _, c := range []struct {
		key         path.Key
		bits, class uint32
		rest        []byte
	}{
		{path.Root(3, 0), 31, 3, nil},
		{path.Of(3, 0, netip.MustParseAddr("192.0.2.77"), 24), 32 + 24, 3 | pathV4, []byte{192, 0, 2}},
		{path.Of(3, 0, netip.MustParseAddr("::ffff:192.0.2.77"), 32), 32 + 32, 3 | pathV4, []byte{192, 0, 2, 77}},
		{path.Of(3, 0, netip.MustParseAddr("2001:db8:1:2::3"), 48), 32 + 48, 3, []byte{0x20, 1, 0xd, 0xb8, 0, 1}},
		{path.Key{Class: 3, Prefix: netip.MustParsePrefix("0.0.0.0/0")}, 32, 3 | pathV4, nil},
		{path.Key{Class: 3, Prefix: netip.MustParsePrefix("::ffff:192.0.2.0/120")}, 32 + 24, 3 | pathV4, []byte{192, 0, 2}},
		{path.Root(3, 9), 96, 3 | pathScoped, scoped("::")},
		{path.Of(3, 9, netip.MustParseAddr("192.0.2.77"), 24), 96 + 96 + 24, 3 | pathScoped, scoped("::ffff:192.0.2.0")},
		{path.Of(3, 9, netip.MustParseAddr("2001:db8:1:2::3"), 48), 96 + 48, 3 | pathScoped, scoped("2001:db8:1::")},
	} {
		got, err := encodeKey(c.key)
		want := abiPathKey{Prefixlen: c.bits, Class: c.class}
		copy(want.Rest[:], c.rest)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", c.key, got, err, want)
		}
	}
	if _, err := encodeKey(path.Key{Class: 1}); err == nil {
		t.Error("a key without prefix is encoded")
	}
	if _, err := encodeKey(path.Root(pathClass+1, 0)); err == nil {
		t.Error("a class that has no room in the key is encoded")
	}
}

func TestEncodePolicy(t *testing.T) {
	var ccs ccTable
	e := path.Entry{Key: path.Root(1, 0), ID: 7, Expires: 5000}
	e.Policy.HoldOut, e.Policy.Slice = 1311, 28
	arms(arm("cubic", 30000), arm("bbr", 35536), arm("reno", 0))(&e.Policy)
	e.Policy.Params.Set(tcp.InitCwnd, 20)
	e.Policy.Params.Set(tcp.MaxPacingRate, 1<<32-2)
	e.Policy.Params.Set(tcp.NoDelay, 0)
	e.Policy.Adapted = 1 << tcp.InitCwnd
	got, err := encodePolicy(&e, &ccs, 1000)
	must(t, err)
	want := abiPathPolicy{ExpiresNs: 4000, Set: 1<<tcp.InitCwnd | 1<<tcp.MaxPacingRate | 1<<tcp.NoDelay, Id: 7, HoldOut: 1311, NumArms: 3, SliceShift: 28, Adapted: 1 << tcp.InitCwnd}
	want.Arm = [8]uint8{0, 1, 2}
	want.Weight = [8]uint32{30000, 65536, 65536}
	want.Value[tcp.InitCwnd], want.Value[tcp.MaxPacingRate] = 20, 1<<32-2
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if e.Expires = 10; func() uint64 { p, _ := encodePolicy(&e, &ccs, 1000); return p.ExpiresNs }() != 0 {
		t.Error("a policy that expired before the clock's start does not expire at 0")
	}
	for _, weights := range [][]uint32{{65535}, {65537}, {0}, {1 << 31, 1 << 31}, {40000, 40000}} {
		bad := path.Entry{Key: path.Root(1, 0), ID: 8}
		for i, w := range weights {
			bad.Policy.Arms[i] = arm(fmt.Sprint("cc", i), w)
		}
		bad.Policy.NumArms = uint8(len(weights))
		if _, err := encodePolicy(&bad, &ccs, 0); err == nil || !strings.Contains(err.Error(), "65536") {
			t.Errorf("weights %d: %v", weights, err)
		}
	}
	none := path.Entry{Key: path.Root(1, 0), ID: 9, Expires: 1}
	if got, err := encodePolicy(&none, &ccs, 0); err != nil || got != (abiPathPolicy{ExpiresNs: 1, Id: 9, Flags: uint16(abiPolicyFlagsPOLICY_UNFOLLOWED)}) {
		t.Errorf("a policy that sets nothing: %+v, %v", got, err)
	}
	short := path.Entry{Key: path.Root(1, 0), ID: 10}
	set(tcp.RTOMin, 1000)(&short.Policy)
	if got, err := encodePolicy(&short, &ccs, 0); err != nil || got.Value[tcp.RTOMin] != minTimeout() || got.Value[tcp.DelackMax] != 0 {
		t.Errorf("a timeout that the kernel refuses: %+v, %v", got, err)
	}
	adaptedSYN := path.Entry{Key: path.Root(1, 0), ID: 11}
	set(tcp.SynRTO, 125)(&adaptedSYN.Policy)
	if got, err := encodePolicy(&adaptedSYN, &ccs, 0); err != nil || got.SynTimeout != 0 {
		t.Errorf("a timeout that a rule sets: %+v, %v", got, err)
	}
	adaptedSYN.Policy.Adapted = 1 << tcp.SynRTO
	us := jiffyMicros()
	if got, err := encodePolicy(&adaptedSYN, &ccs, 0); err != nil || got.SynTimeout != (125_000+us-1)/us {
		t.Errorf("an adapted timeout: %+v, %v", got, err)
	}
	if ccs.n.Load() < 3 || ccs.name(1) != cc("bbr") {
		t.Error("arms are not numbered in order")
	}
}

func TestEveryFieldIsSetOneWay(t *testing.T) {
	names := map[abiSockOption]tcp.Field{}
	before, after := optionMasks()
	for f := range tcp.NumFields {
		o, option := options[f]
		op, request := requestOps[f]
		when := tcp.Fields[f].When
		special := when == tcp.AtSample || when == tcp.AtRoundTrip // with options of other fields, or by a congestion control
		if option == request && !special {
			t.Errorf("%s: option %v, request %v", f, option, request)
		}
		if request != (tcp.Fields[f].When == tcp.AtRequest) || request && (op < 1 || op > 31) {
			t.Errorf("%s is set %d, by op %d", f, tcp.Fields[f].When, op)
		}
		if other, ok := names[o]; option && ok {
			t.Errorf("%s and %s are the same option", f, other)
		}
		names[o] = f
		if _, probed := probeValues[f]; probed != option {
			t.Errorf("%s is an option: %v, is probed: %v", f, option, probed)
		}
		if v := probeValues[f]; option && (v > tcp.Fields[f].Max || v < tcp.Fields[f].Min && tcp.Fields[f].Min > 1) {
			t.Errorf("%s is probed with %d, out of range", f, v)
		}
		row := optionTable()[f]
		if atEnd := tcp.Fields[f].When == tcp.AtEstablished; before>>f&1 != uint64(b2i(option && !atEnd)) || after>>f&1 != uint64(b2i(atEnd)) {
			t.Errorf("%s: in masks %b, %b", f, before>>f&1, after>>f&1)
		}
		if row.Valid != b2i(option) || row.Name != o.Name || row.Level != o.Level {
			t.Errorf("%s: row %+v", f, row)
		}
		// Programs pass a C int.
		if option && tcp.Fields[f].Max > 1<<32-1 {
			t.Errorf("%s goes up to %d", f, tcp.Fields[f].Max)
		}
	}
	if len(options)+len(requestOps)+3 != int(tcp.NumFields) {
		t.Errorf("%d options and %d requests for %d fields", len(options), len(requestOps), tcp.NumFields)
	}
}

func b2i(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func TestUnfollowed(t *testing.T) {
	def := func(weight uint32) path.Arm { return path.Arm{CC: cc("cubic"), Weight: weight, Default: true} }
	adapted := func(f ...tcp.Field) (p path.Policy) {
		for _, f := range f {
			p.Params.Set(f, 250)
			p.Adapted |= 1 << f
		}
		return p
	}
	fixed := adapted(tcp.SynRTO)
	fixed.Adapted = 0
	both := adapted(tcp.SynRTO, tcp.SynAckRTO)
	arms(def(1 << 16))(&both)
	for name, c := range map[string]struct {
		p    path.Policy
		want bool
	}{
		"nothing":                       {path.Policy{}, true},
		"the default":                   {path.Policy{NumArms: 1, Arms: [path.MaxArms]path.Arm{def(1 << 16)}}, true},
		"the default, others not drawn": {path.Policy{NumArms: 2, Arms: [path.MaxArms]path.Arm{def(1 << 16), arm("bbr", 0)}}, true},
		"others are drawn":              {path.Policy{NumArms: 2, Arms: [path.MaxArms]path.Arm{def(1<<16 - 1), arm("bbr", 1)}}, false},
		"another":                       {path.Policy{NumArms: 1, Arms: [path.MaxArms]path.Arm{arm("bbr", 1<<16)}}, false},
		"both timeouts, adapted":        {both, true},
		"a timeout that a rule sets":    {fixed, false},
		"RTO_MIN":                       {adapted(tcp.SynRTO, tcp.RTOMin), false},
		"may get something later":       {path.Policy{FollowAll: true}, false},
		"counted":                       {path.Policy{CountFlows: true}, true},
		"losses are watched":            {path.Policy{WatchLosses: true}, true},
	} {
		if got := unfollowed(&c.p); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestRequestMask(t *testing.T) {
	const all = 1<<tcp.NumFields - 1
	for _, c := range []struct{ set, adapted, ops uint64 }{
		{0, 0, 0}, {1 << tcp.InitCwnd, 1 << tcp.InitCwnd, 0},
		{1 << tcp.SynRTO, 0, 1<<1 | 1<<30}, {0, 1 << tcp.SynRTO, 1 << 1},
		{1 << tcp.SynAckRTO, 0, 1<<1 | 1<<31}, {0, 1 << tcp.SynAckRTO, 1<<1 | 1<<29}, {1 << tcp.SynAckRTO, 1 << tcp.SynAckRTO, 1<<1 | 1<<31},
		{1 << tcp.InitRwnd, 0, 1 << 2}, {0, 1 << tcp.InitRwnd, 0}, {1 << tcp.ECN, 0, 1 << 6}, {1 << tcp.BaseRTT, 0, 1 << 7},
		{all, 0, 1<<1 | 1<<2 | 1<<6 | 1<<7 | 1<<11 | 1<<30 | 1<<31}, {0, 1 << tcp.PeerOption, 1 << 11}, {1 << 63, 0, 0},
	} {
		if got := requestMask(c.set, c.adapted); uint64(got) != c.ops {
			t.Errorf("fields %b, adapted %b need ops %b, got %b", c.set, c.adapted, c.ops, got)
		}
	}
}

func TestCCTable(t *testing.T) {
	var ccs ccTable
	for i := range maxCC {
		name := cc(fmt.Sprint("cc", i))
		for range 2 {
			if id, err := ccs.add(name); err != nil || int(id) != i {
				t.Fatalf("%s: number %d, %v", name, id, err)
			}
		}
	}
	if _, err := ccs.add(cc("more")); err == nil || ccs.room(cc("more")) == nil {
		t.Error("the table has no bound")
	}
	if err := ccs.room(cc("cc5")); err != nil {
		t.Errorf("no room for what is there: %v", err)
	}
	if id, err := ccs.add(cc("cc5")); err != nil || id != 5 {
		t.Errorf("a known one after that: %d, %v", id, err)
	}
	if _, ok := ccs.lookup(cc("more")); ok {
		t.Error("the refused one is known")
	}
	if ccs.name(uint32(maxCC)) != (tcp.CC{}) || ccs.name(31) != cc("cc31") {
		t.Error("name is wrong")
	}
}

func TestSamePrefixMask(t *testing.T) {
	for _, c := range []class.SamePrefix{{V4: true, Bits: 0}, {V4: true, Bits: 20}, {V4: true, Bits: 32}, {Bits: 0}, {Bits: 44}, {Bits: 128}} {
		p := samePrefix(c)
		n, want := 0, c.Bits
		for _, b := range p.Mask {
			n += bits.OnesCount8(b)
		}
		if c.V4 {
			want += 96
		}
		if n != want || (p.V4 == 1) != c.V4 {
			t.Errorf("%+v has a mask of %d bits: %x", c, n, p.Mask)
		}
	}
}

func TestJiffy(t *testing.T) {
	us := jiffyMicros()
	for _, hz := range []uint32{100, 250, 300, 1000} {
		if us == (1_000_000+hz/2)/hz {
			return
		}
	}
	t.Errorf("a jiffy is %d us", us)
}

func TestWallOffset(t *testing.T) {
	if d := time.Since(time.Unix(0, monotonic()+wallOffset())); d < -time.Millisecond || d > time.Second {
		t.Errorf("clocks differ by %v", d)
	}
}

func TestEncodeDefaultArm(t *testing.T) {
	var ccs ccTable
	e := path.Entry{Key: path.Root(1, 0), ID: 7, Expires: 1}
	e.Policy.Slice, e.Policy.HoldSlices = 28, 6554
	arms(arm("bbr", 30000), theDefault(35536))(&e.Policy)
	got, err := encodePolicy(&e, &ccs, 0)
	must(t, err)
	want := abiPathPolicy{ExpiresNs: 1, Id: 7, NumArms: 2, SliceShift: 28, HoldOutSlices: 6554}
	want.Arm = [8]uint8{0, uint8(abiAbiLimitsARM_DEFAULT)}
	want.Weight = [8]uint32{30000, 65536}
	if got != want || ccs.n.Load() != 1 {
		t.Errorf("got  %+v\nwant %+v, and one congestion control known, not %d", got, want, ccs.n.Load())
	}
}
