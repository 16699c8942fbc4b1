package api

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Every field of a sample must survive JSON: a recording is made through it.
func TestSampleSurvivesJSON(t *testing.T) {
	var want tcp.Sample
	v := reflect.ValueOf(&want).Elem()
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
			*p = 1<<len(flagNames) - 1
		default:
			if f.CanUint() {
				f.SetUint(n & (1<<f.Type().Bits() - 1))
			} else {
				f.SetInt(int64(n))
			}
		}
	}
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

func TestEveryWordIsRead(t *testing.T) {
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
	if tcp.Flags(1<<(len(flagNames)-1)) != tcp.FlagAdopted {
		t.Error("flagNames does not end with the last flag of package tcp")
	}
	l := Sample{Flags: []string{"ecn"}}
	if !l.Has("ecn") || l.Has("hold-out") {
		t.Error("Has does not find its flags")
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
		if got := tt.f.Match(&s); got != tt.want {
			t.Errorf("%+v.Match = %v, want %v", tt.f, got, tt.want)
		}
	}
}
