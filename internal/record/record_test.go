package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// filled returns a sample in which every field differs from zero and from the others, so that
// the test detects a missing or swapped field.
func filled(t testing.TB) (s tcp.Sample) {
	t.Helper()
	fill(t, reflect.ValueOf(&s).Elem())
	return s
}

func fill(t testing.TB, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		f, n := v.Field(i), uint64(0x0102030405060000+i)
		switch p := f.Addr().Interface().(type) {
		case *tcp.CC:
			copy(p[:], "cc-"+v.Type().Field(i).Name)
		case *netip.AddrPort:
			*p = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), uint16(i))
		case *tcp.Kind:
			*p = tcp.KindFailedConnect
		case *tcp.End:
			*p = tcp.EndRefused
		case *tcp.CCState:
			fill(t, f)
		default:
			if f.CanUint() {
				f.SetUint(n & (1<<f.Type().Bits() - 1))
			} else {
				f.SetInt(int64(n))
			}
		}
		if f.IsZero() {
			t.Fatalf("%s is still zero: teach this test its type", v.Type().Field(i).Name)
		}
	}
}

func TestRoundTripKeepsEveryField(t *testing.T) {
	v4 := filled(t)
	v6 := v4
	v6.Local = netip.MustParseAddrPort("[2001:db8::1]:443")
	v6.Remote = netip.MustParseAddrPort("[::ffff:192.0.2.1]:65535")
	none := tcp.Sample{Kind: tcp.KindClose, StandsFor: 1}
	for _, want := range []tcp.Sample{v4, v6, none} {
		buf := [Size]byte{}
		for i := range buf {
			buf[i] = 0xff // bytes of an earlier record
		}
		encode(&buf, &want)
		got := filled(t)
		got.Cookie++
		if err := decode(&got, buf[:]); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	s := filled(t)
	for name, tt := range map[string]struct {
		spoil  func(*[Size]byte)
		resum  bool
		expect string
	}{
		"a flipped bit":    {func(b *[Size]byte) { b[offAt] ^= 1 }, false, "checksum"},
		"an unknown kind":  {func(b *[Size]byte) { b[offKind] = 9 }, true, "kind 9"},
		"an unknown end":   {func(b *[Size]byte) { b[offEnd] = 200 }, true, "end 200"},
		"a strange family": {func(b *[Size]byte) { b[offLocalFam] = 5 }, true, "family 5"},
		"a long IPv4":      {func(b *[Size]byte) { b[offRemote+7] = 1 }, true, "not valid"},
		"too many others":  {func(b *[Size]byte) { copy(b[offStandsFor:], "\xff\xff\xff\xff") }, true, "stands for"},
	} {
		t.Run(name, func(t *testing.T) {
			var b [Size]byte
			encode(&b, &s)
			tt.spoil(&b)
			if tt.resum {
				le.PutUint32(b[Size-crc:], sum(b[:]))
			}
			var got tcp.Sample
			if err := decode(&got, b[:]); err == nil || !strings.Contains(err.Error(), tt.expect) {
				t.Errorf("error %v, want one that says %q", err, tt.expect)
			}
		})
	}
}

func recording(t testing.TB, n int) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, Meta{Created: time.Unix(1, 0).UTC(), Version: "1.0", Kernel: "6.18",
		Rules: []RuleName{{Class: 3, Name: "web"}}})
	if err != nil {
		t.Fatal(err)
	}
	s := filled(t)
	for i := range n {
		s.Cookie = uint64(i)
		if err := w.Write(&s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if w.count != uint64(n) {
		t.Fatalf("Count = %d, want %d", w.count, n)
	}
	return out.Bytes()
}

func TestFileRoundTrip(t *testing.T) {
	const n = 3000 // more than one buffer
	r, err := NewReader(bytes.NewReader(recording(t, n)))
	if err != nil {
		t.Fatal(err)
	}
	if m := r.Meta(); m.Kernel != "6.18" || len(m.Rules) != 1 || m.Rules[0].Name != "web" {
		t.Errorf("Meta = %+v", m)
	}
	var i uint64
	for s := range r.All() {
		if s.Cookie != i {
			t.Fatalf("sample %d has cookie %d", i, s.Cookie)
		}
		i++
	}
	if i != n || r.Count() != n || r.Err() != nil {
		t.Errorf("%d samples, Count %d, Err %v; want %d without error", i, r.Count(), r.Err(), n)
	}
	var s tcp.Sample
	if err := r.read(&s); err != io.EOF {
		t.Errorf("after the end: %v, want io.EOF", err)
	}
}

func TestDamagedFileIsReadUpToTheDamage(t *testing.T) {
	whole := recording(t, 10)
	flipped := bytes.Clone(whole)
	flipped[len(flipped)-3*Size+5] ^= 0x40
	for name, tt := range map[string]struct {
		file    []byte
		samples uint64
		offset  int
		is      error
	}{
		"cut":     {whole[:len(whole)-100], 9, len(whole) - Size, io.ErrUnexpectedEOF},
		"flipped": {flipped, 7, len(whole) - 3*Size, errChecksum},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader(bytes.NewReader(tt.file))
			if err != nil {
				t.Fatal(err)
			}
			var n uint64
			for range r.All() {
				n++
			}
			var d *damageError
			if !errors.As(r.Err(), &d) {
				t.Fatalf("Err = %v, want a damageError", r.Err())
			}
			if n != tt.samples || d.Samples != n || d.Offset != int64(tt.offset) || !errors.Is(d, tt.is) {
				t.Errorf("%d samples, then %+v; want %d and offset %d", n, d, tt.samples, tt.offset)
			}
		})
	}
}

func TestNewReaderRefuses(t *testing.T) {
	good := recording(t, 0)
	edit := func(f func(b []byte)) []byte {
		b := bytes.Clone(good)
		f(b)
		return b
	}
	for name, tt := range map[string]struct {
		file    []byte
		foreign bool
		expect  string
	}{
		"empty":         {nil, true, "too few"},
		"text":          {[]byte(`{"tcpilot_samples": 1, "more": 2}`), true, "right eight bytes"},
		"newer":         {edit(func(b []byte) { b[8] = formatVersion + 1 }), false, fmt.Sprintf("version %d, and this tcpilot reads version %d", formatVersion+1, formatVersion)},
		"version 0":     {edit(func(b []byte) { b[8] = 0 }), false, "version 0"},
		"older":         {edit(func(b []byte) { b[8] = formatVersion - 1 }), false, fmt.Sprintf("version %d, and this tcpilot reads version %d", formatVersion-1, formatVersion)},
		"other size":    {edit(func(b []byte) { b[10] = 1 }), false, "damaged"},
		"huge meta":     {edit(func(b []byte) { b[15] = 0xff }), false, "damaged"},
		"cut in meta":   {good[:20], false, "cut short"},
		"meta not JSON": {edit(func(b []byte) { b[fixedHeader] = 'x' }), false, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewReader(bytes.NewReader(tt.file))
			if err == nil || !strings.Contains(err.Error(), tt.expect) || errors.Is(err, ErrForeign) != tt.foreign {
				t.Errorf("error %v; want %q, foreign %v", err, tt.expect, tt.foreign)
			}
		})
	}
}

func TestNoAllocationPerSample(t *testing.T) {
	file := recording(t, 2000)
	r, err := NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(io.Discard, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	var s tcp.Sample
	if n := testing.AllocsPerRun(1000, func() {
		if err := r.read(&s); err != nil {
			t.Fatal(err)
		}
		if err := w.Write(&s); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per sample, want none", n)
	}
}

type failing struct{ after int }

func (f *failing) Write(b []byte) (int, error) {
	if f.after -= len(b); f.after < 0 {
		return 0, errors.New("disk full")
	}
	return len(b), nil
}

func TestWriterReportsErrors(t *testing.T) {
	if _, err := NewWriter(&failing{}, Meta{}); err == nil {
		t.Error("no error for a header that could not be written")
	}
	big := Meta{Rules: []RuleName{{Name: strings.Repeat("x", maxMeta)}}}
	if _, err := NewWriter(io.Discard, big); err == nil {
		t.Error("no error for a header that is too long")
	}
	w, err := NewWriter(&failing{after: 1000}, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	s := filled(t)
	for range 100 {
		if err = w.Write(&s); err != nil {
			break
		}
	}
	if err == nil {
		err = w.Flush()
	}
	if err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("error %v, want disk full", err)
	}
}

func FuzzDecode(f *testing.F) {
	s := filled(f)
	var b [Size]byte
	encode(&b, &s)
	f.Add(b[:])
	f.Add(make([]byte, Size))
	f.Fuzz(func(t *testing.T, in []byte) {
		b := make([]byte, Size)
		copy(b, in)
		le.PutUint32(b[len(b)-crc:], sum(b)) // otherwise the fuzzer would test only the checksum
		var s tcp.Sample
		if decode(&s, b) != nil {
			return
		}
		var again [Size]byte
		encode(&again, &s)
		if !bytes.Equal(again[:], b) {
			t.Errorf("decodes, but encodes to other bytes\n in %x\nout %x", b, again)
		}
	})
}

func FuzzReader(f *testing.F) {
	f.Add(recording(f, 2))
	f.Add(recording(f, 1)[:100])
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := NewReader(bytes.NewReader(in))
		if err != nil {
			return
		}
		var n uint64
		for range r.All() {
			n++
		}
		if n != r.Count() || (r.Err() == nil && (uint64(len(in))-uint64(r.offset)) != 0) {
			t.Errorf("%d samples, Count %d, offset %d of %d, Err %v", n, r.Count(), r.offset, len(in), r.Err())
		}
	})
}

func BenchmarkRead(b *testing.B) {
	const n = 100_000
	file := recording(b, n)
	b.SetBytes(n * Size)
	b.ReportAllocs()
	for b.Loop() {
		r, err := NewReader(bytes.NewReader(file))
		if err != nil {
			b.Fatal(err)
		}
		for range r.All() {
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/sample")
}
