package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// record is r as the ring buffer holds it, padded to 8 bytes.
func record(r *abiConnSample) []byte {
	raw := bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(r)), sampleSize))
	return append(raw, make([]byte, -len(raw)&7)...)
}

// distinct gives every member of a record a value of its own.
func distinct() *abiConnSample {
	raw := make([]byte, sampleSize)
	for i := range len(raw) / 4 {
		binary.NativeEndian.PutUint32(raw[4*i:], uint32(i+1))
	}
	r := (*abiConnSample)(unsafe.Pointer(&raw[0]))
	r.Local, r.Remote = netip.MustParseAddr("::ffff:192.0.2.1").As16(), netip.MustParseAddr("2001:db8::1").As16()
	r.LocalPort, r.RemotePort = 443, 50000
	r.Kind, r.Err, r.Closed, r.Arm = uint8(tcp.KindClose), 0, 0, 1
	r.Flags = 0xffff &^ uint16(tcp.FlagDefaultArm)
	r.Cc = cc("reno")
	r.CcState.Flags = 0xff
	r.InitLost, r.Undone = 7, 9 // the upper halves of their four bytes
	return r
}

func someCCs(t testing.TB) *ccTable {
	var ccs ccTable
	for _, n := range []string{"cubic", "bbr"} {
		if _, err := ccs.add(cc(n)); err != nil {
			t.Fatal(err)
		}
	}
	return &ccs
}

func TestDecode(t *testing.T) {
	r := distinct()
	var got tcp.Sample
	must(t, decode(&got, record(r), 1000, someCCs(t)))
	want := tcp.Sample{
		Kind: tcp.KindClose, End: tcp.EndAborted, Flags: (tcp.FlagSndbufMax<<1-1)&^tcp.FlagDefaultArm | tcp.FlagLater | tcp.FlagPeerSent | tcp.FlagPeerResent,
		At: int64(r.AtNs) + 1000, Local: netip.MustParseAddrPort("192.0.2.1:443"), Remote: netip.MustParseAddrPort("[2001:db8::1]:50000"),
		Arm: cc("bbr"), CC: cc("reno"),
		Retrans: r.TotalRetrans, RwndLtd: micros(r.RwndLimitedUs), SndbufLtd: micros(r.SndbufLimitedUs),
		CCState: tcp.CCState{Flags: tcp.AllCCFlags},
	}
	takeByName(reflect.ValueOf(&want).Elem(), reflect.ValueOf(r).Elem())
	takeByName(reflect.ValueOf(&want.CCState).Elem(), reflect.ValueOf(&r.CcState).Elem())
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// A field that decode misses would be zero; no member of the record is.
	for _, v := range []reflect.Value{reflect.ValueOf(got), reflect.ValueOf(got.CCState)} {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("%s is not decoded", v.Type().Field(i).Name)
			}
		}
	}
}

// takeByName fills the zero fields of a sample from the members of a record with the same
// name, without case, underscores and the unit.
func takeByName(sample, record reflect.Value) {
	for i := range sample.NumField() {
		to, name := sample.Field(i), strings.ToLower(sample.Type().Field(i).Name)
		from := record.FieldByNameFunc(func(member string) bool {
			return strings.TrimSuffix(strings.ToLower(letters(member)), "us") == name
		})
		switch {
		case !to.IsZero() || !from.IsValid():
		case to.Type() == reflect.TypeFor[time.Duration]():
			to.SetInt(int64(micros(from.Uint())))
		case to.CanUint():
			to.SetUint(from.Uint())
		case to.CanInt():
			to.SetInt(from.Int())
		}
	}
}

func TestDecodeWithoutCCState(t *testing.T) {
	r := distinct()
	r.CcState = abiCcState{}
	s := tcp.Sample{CCState: tcp.CCState{BW: 1, Flags: tcp.CCFlagKnown}} // from the record before
	must(t, decode(&s, record(r), 0, someCCs(t)))
	if s.CCState != (tcp.CCState{}) {
		t.Errorf("%+v", s.CCState)
	}
}

func TestDecodeDefaultArm(t *testing.T) {
	r := distinct()
	r.Arm, r.Flags, r.StandsFor = uint32(abiAbiLimitsARM_DEFAULT), uint16(tcp.FlagDefaultArm), 0
	var s tcp.Sample
	must(t, decode(&s, record(r), 0, someCCs(t)))
	if s.Arm != cc("reno") || !s.Has(tcp.FlagDefaultArm) || s.StandsFor != 1 {
		t.Errorf("arm %s, flags %b, stands for %d", s.Arm, s.Flags, s.StandsFor)
	}
}

func TestDecodeInvalid(t *testing.T) {
	good := record(distinct())
	kind := int(unsafe.Offsetof(abiConnSample{}.Kind))
	for name, raw := range map[string][]byte{
		"empty": nil, "one byte": {1}, "a byte short": good[:sampleSize-1], "two records": append(bytes.Clone(good), good...),
		"8 bytes more": append(bytes.Clone(good[:sampleSize]), make([]byte, 8)...),
		"kind 0":       func() []byte { b := bytes.Clone(good); b[kind] = 0; return b }(),
		"kind 4":       func() []byte { b := bytes.Clone(good); b[kind] = 4; return b }(),
	} {
		s := tcp.Sample{Cookie: 77}
		if err := decode(&s, raw, 0, someCCs(t)); !errors.Is(err, errSample) || s != (tcp.Sample{Cookie: 77}) {
			t.Errorf("%s: %v, %+v", name, err, s)
		}
	}
}

func TestDecodeExtremes(t *testing.T) {
	r := distinct()
	r.DurationUs, r.BusyUs, r.AtNs, r.Arm = ^uint64(0), ^uint64(0), ^uint64(0), uint32(abiAbiLimitsNO_ARM)
	var s tcp.Sample
	must(t, decode(&s, record(r), 0, someCCs(t)))
	if s.Duration <= 0 || s.Busy <= 0 || s.Arm != (tcp.CC{}) {
		t.Errorf("%+v", s)
	}
	for _, arm := range []uint32{2, 31, 32, 255, 256, ^uint32(0)} {
		r.Arm = arm
		must(t, decode(&s, record(r), 0, someCCs(t)))
		if s.Arm != (tcp.CC{}) {
			t.Errorf("arm %d is %s", arm, s.Arm)
		}
	}
}

func TestEnd(t *testing.T) {
	const (
		fin, acked, rst = abiClosedBitsCLOSED_FIN_SEEN, abiClosedBitsCLOSED_ALL_ACKED, abiClosedBitsCLOSED_RST_SENT
		closed, failed  = tcp.KindClose, tcp.KindFailedConnect
	)
	for _, c := range []struct {
		kind   tcp.Kind
		err    syscall.Errno
		closed abiClosedBits
		want   tcp.End
	}{
		{tcp.KindInterval, syscall.ECONNRESET, fin, tcp.EndNone},
		{closed, 0, fin | acked, tcp.EndFin},
		{closed, 0, fin, tcp.EndFin},
		{closed, 0, acked, tcp.EndFin},
		{closed, 0, 0, tcp.EndAborted},
		{closed, 0, fin | acked | rst, tcp.EndAborted},
		{closed, 0, rst, tcp.EndAborted},
		{closed, syscall.ECONNRESET, acked, tcp.EndReset},
		{closed, syscall.EPIPE, fin, tcp.EndReset},
		{closed, syscall.ETIMEDOUT, 0, tcp.EndTimeout},
		{closed, syscall.ECONNABORTED, acked, tcp.EndAborted},
		{closed, syscall.EHOSTUNREACH, 0, tcp.EndOther},
		{failed, syscall.ECONNREFUSED, 0, tcp.EndRefused},
		{failed, syscall.ETIMEDOUT, acked, tcp.EndTimeout},
		{failed, syscall.EHOSTUNREACH, 0, tcp.EndOther},
		{failed, 0, acked, tcp.EndAborted},
		{failed, syscall.ECONNRESET, 0, tcp.EndAborted},
	} {
		if got := end(c.kind, c.err, c.closed); got != c.want {
			t.Errorf("%s with %v and bits %b ends %s, want %s", c.kind, c.err, c.closed, got, c.want)
		}
	}
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	raw, ccs := record(distinct()), someCCs(t)
	var s tcp.Sample
	if n := testing.AllocsPerRun(1000, func() { _ = decode(&s, raw, 5, ccs) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func FuzzDecode(f *testing.F) {
	good := record(distinct())
	f.Add(good, int64(0))
	f.Add(good[:sampleSize-1], int64(1))
	f.Add(append(bytes.Clone(good), 0, 0, 0, 0, 0, 0, 0, 0), int64(-1))
	f.Add([]byte(nil), int64(1<<62))
	f.Add(bytes.Repeat([]byte{0xff}, sampleSize), int64(-1<<63))
	ccs := someCCs(f)
	f.Fuzz(func(t *testing.T, raw []byte, offset int64) {
		before := bytes.Clone(raw)
		var s tcp.Sample
		err := decode(&s, raw, offset, ccs)
		if !bytes.Equal(raw, before) {
			t.Fatal("the record was changed")
		}
		if (err == nil) != (s.Kind != 0) {
			t.Fatalf("%v, and a sample of kind %d", err, s.Kind)
		}
		if err != nil {
			return
		}
		if s.Kind.String() == "unknown" || s.Duration < 0 || s.Busy < 0 || s.RwndLtd < 0 || s.SndbufLtd < 0 ||
			!s.Local.IsValid() || s.Remote.Addr().Is4In6() || s.Flags&^(tcp.FlagLater|tcp.FlagPeerSent|tcp.FlagPeerResent) >= tcp.FlagSndbufMax<<1 ||
			s.CCState.Flags&^tcp.AllCCFlags != 0 {
			t.Fatalf("impossible sample %+v", s)
		}
		if (s.Kind == tcp.KindInterval) != (s.End == tcp.EndNone) {
			t.Fatalf("%s ends %s", s.Kind, s.End)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	raw, ccs := record(distinct()), someCCs(b)
	var s tcp.Sample
	b.ReportAllocs()
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if err := decode(&s, raw, 5, ccs); err != nil {
			b.Fatal(err)
		}
	}
}
