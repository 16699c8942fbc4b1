package api

import (
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Every field of a sample must survive JSON, because recordings are made from it.
func TestSampleSurvivesJSON(t *testing.T) {
	var want tcp.Sample
	fill(reflect.ValueOf(&want).Elem())
	want.CC, _ = tcp.ParseCC("tcpilot_bbr3") // the names of modes depend on the control
	bound, empty := want, want
	bound.CCState.InflightHi, bound.CCState.InflightLo = tcp.NoBound, tcp.NoBound
	empty.CCState = tcp.CCState{}
	for _, want := range []tcp.Sample{want, bound, empty} {
		line := FromSample(&want)
		b, err := json.Marshal(&line)
		if err != nil {
			t.Fatal(err)
		}
		var back Sample
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		if got := back.Sample(); got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

// fill gives every field a different value.
func fill(v reflect.Value) {
	for i := range v.NumField() {
		f, n := v.Field(i), uint64(0x0102030405060000+i)
		switch p := f.Addr().Interface().(type) {
		case *tcp.CC:
			copy(p[:], v.Type().Field(i).Name)
		case *netip.AddrPort:
			*p = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), uint16(i))
		case *tcp.Kind:
			*p = tcp.KindInterval
		case *tcp.End:
			*p = tcp.EndTimeout
		case *tcp.Flags:
			for i, name := range flagNames {
				if name != "" {
					*p |= 1 << i
				}
			}
		case *tcp.CCFlags:
			*p = tcp.AllCCFlags
		case *tcp.CCState:
			fill(f)
		default:
			if f.CanUint() {
				f.SetUint(n & (1<<f.Type().Bits() - 1))
			} else {
				f.SetInt(int64(n))
			}
		}
	}
}

func TestEveryNameIsParsed(t *testing.T) {
	for k := tcp.KindClose; k <= tcp.KindFailedConnect; k++ {
		if got, err := ParseKind(k.String()); got != k || err != nil {
			t.Errorf("ParseKind(%q) = %v, %v", k, got, err)
		}
	}
	if _, err := ParseKind("unknown"); err == nil {
		t.Error("no error for an unknown kind")
	}
	for e := tcp.EndNone; e <= tcp.EndOther; e++ {
		if got := endOf(e.String()); got != e {
			t.Errorf("endOf(%q) = %v", e, got)
		}
	}
	if tcp.Flags(1<<(len(flagNames)-1)) != tcp.FlagPeerResent {
		t.Error("flagNames does not end with the last flag of package tcp")
	}
	l := Sample{Flags: []string{"ecn"}}
	if !l.Has("ecn") || l.Has("hold-out") {
		t.Error("Has does not find its flags")
	}
}

func TestCCStateHasModeName(t *testing.T) {
	s := tcp.Sample{CCState: tcp.CCState{BW: 11_760_000, MinRTT: 12_300, InflightHi: 120, InflightLo: tcp.NoBound,
		Alpha: 256, WMax: 140, Mode: 5, Flags: tcp.CCFlagKnown | tcp.CCFlagFullPipe}}
	s.CC, _ = tcp.ParseCC("tcpilot_bbr3")
	line := FromSample(&s)
	got, err := json.Marshal(line.CCState)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"mode":"probe-up","bw_bytes_per_second":11760000,"min_rtt_us":12300,"inflight_hi":120,"alpha":0.25,"w_max":140,"full_pipe":true}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	other := FromSample(&tcp.Sample{})
	if other.CCState != nil {
		t.Errorf("a sample without a state has %+v", other.CCState)
	}
}

// Fractions are converted to JSON and back exactly.
func TestCCStateIsExact(t *testing.T) {
	bbr3, _ := tcp.ParseCC("tcpilot_bbr3")
	for _, us := range []uint32{0, 1, 3, 333_333, 999_999, 1_000_001, 4_294_967_295} {
		s := tcp.Sample{CC: bbr3, CCState: tcp.CCState{MinRTT: us, Alpha: us % 1025, Flags: tcp.CCFlagKnown}}
		if back := fromCCState(&s).state(bbr3); back != s.CCState {
			t.Errorf("%d us came back as %+v", us, back)
		}
	}
}

// Every field, and every mode, must be in docs/samples.md.
func TestSampleFieldsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/samples.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := func(word string) {
		t.Helper()
		if !strings.Contains(string(text), "`"+word+"`") {
			t.Errorf("%s is not in docs/samples.md", word)
		}
	}
	for _, of := range []reflect.Type{reflect.TypeFor[Sample](), reflect.TypeFor[CCState]()} {
		for f := range of.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous {
				documented(name)
			}
		}
	}
	for _, name := range flagNames {
		if name != "" {
			documented(name)
		}
	}
	for _, own := range congestion.Own() {
		for _, mode := range own.Modes {
			documented(own.CC.String())
			documented(mode)
		}
	}
}

func TestSampleFilter(t *testing.T) {
	s := tcp.Sample{Kind: tcp.KindClose, BytesAcked: 600, BytesReceived: 400, Remote: netip.MustParseAddrPort("192.0.2.7:443")}
	for _, tt := range []struct {
		f    SampleFilter
		want bool
	}{
		{SampleFilter{}, true},
		{SampleFilter{Kind: tcp.KindClose, MinBytes: 1000, Remote: netip.MustParsePrefix("192.0.2.0/24")}, true},
		{SampleFilter{Kind: tcp.KindInterval}, false},
		{SampleFilter{MinBytes: 1001}, false},
		{SampleFilter{Remote: netip.MustParsePrefix("192.0.3.0/24")}, false},
		{SampleFilter{Remote: netip.MustParsePrefix("::/0")}, false},
	} {
		if got := tt.f.match(&s); got != tt.want {
			t.Errorf("%+v.Match = %v, want %v", tt.f, got, tt.want)
		}
	}
}
