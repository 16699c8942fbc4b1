package tcp

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestFieldsDescribeThemselves(t *testing.T) {
	seen := map[string]bool{}
	for f := range NumFields {
		s := &Fields[f]
		if s.Name == "" || s.Kernel == "" || s.Doc == "" || seen[s.Name] {
			t.Errorf("field %d: name %q, kernel %q, doc %q", f, s.Name, s.Kernel, s.Doc)
		}
		seen[s.Name] = true
		if s.Min > s.Max || s.Max > 1<<32-1 { // every option is a C int
			t.Errorf("%s: range %d to %d", s.Name, s.Min, s.Max)
		}
		if s.Unit == Bool && (s.Min != 0 || s.Max != 1) {
			t.Errorf("%s: a switch from %d to %d", s.Name, s.Min, s.Max)
		}
		if got, ok := FieldByName(s.Name); !ok || got != f || f.String() != s.Name {
			t.Errorf("%s is found as %v, %v", s.Name, got, ok)
		}
	}
	if _, ok := FieldByName("cc"); ok {
		t.Error("cc is found as a field: it is not one, because arms and rules name it")
	}
}

func TestParamsTellZeroFromUnset(t *testing.T) {
	var p Params
	if v, ok := p.Get(NoDelay); ok || v != 0 || p.Mask() != 0 || len(p.Fields()) != 0 {
		t.Errorf("empty: %d %v %b", v, ok, p.Mask())
	}
	const last = NumFields - 1 // the mask is wide enough for it
	p.Set(NoDelay, 0)
	p.Set(last, 7)
	if v, ok := p.Get(NoDelay); !ok || v != 0 {
		t.Errorf("nodelay: %d %v", v, ok)
	}
	if fs := p.Fields(); len(fs) != 2 || fs[0] != NoDelay || fs[1] != last {
		t.Errorf("fields %v", fs)
	}
	p.Unset(last)
	p.Unset(NoDelay)
	if p != (Params{}) {
		t.Errorf("after unset: %+v", p)
	}
}

func TestCCIsTheKernelsName(t *testing.T) {
	for _, name := range []string{"", strings.Repeat("x", 16)} {
		if cc, ok := ParseCC(name); ok || cc != (CC{}) {
			t.Errorf("%q became %q", name, cc)
		}
	}
	cc, ok := ParseCC("fifteen_letters")
	if !ok || cc.String() != "fifteen_letters" {
		t.Errorf("%q, %v", cc, ok)
	}
	b, err := json.Marshal(cc)
	var back CC
	if err != nil || json.Unmarshal(b, &back) != nil || back != cc {
		t.Errorf("%s came back as %q: %v", b, back, err)
	}
	if err := back.UnmarshalText([]byte("a_name_that_is_far_too_long")); err != nil || back.String() != "a_name_that_is_" {
		t.Errorf("%q: %v", back, err)
	}
}

func TestSendLimitedIsNeverNegative(t *testing.T) {
	s := Sample{Busy: time.Second, RwndLtd: 300 * time.Millisecond, SndbufLtd: 200 * time.Millisecond}
	if got := s.SendLimited(); got != 500*time.Millisecond {
		t.Errorf("got %s", got)
	}
	s.RwndLtd = time.Minute // the kernel's clocks are read one after the other
	if got := s.SendLimited(); got != 0 {
		t.Errorf("got %s", got)
	}
}

func TestNamesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for e := EndNone; e <= EndOther; e++ {
		if seen[e.String()] {
			t.Errorf("end %d: %s again", e, e)
		}
		seen[e.String()] = true
	}
	for k := KindClose; k <= KindFailedConnect; k++ {
		if k.String() == "unknown" {
			t.Errorf("kind %d has no word", k)
		}
	}
}
