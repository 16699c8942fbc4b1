package record

import (
	"bytes"
	"os"
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// asVersion1 is s as version 1 wrote it: without the state of the control.
func asVersion1(s *tcp.Sample) []byte {
	var now [Size]byte
	Encode(&now, s)
	b := append(bytes.Clone(now[:offControl]), make([]byte, spare)...)
	clear(b[offStandsFor:offDuration])
	le.PutUint32(b[size1-crc:], sum(b))
	return b
}

func recordingVersion1(t testing.TB, n int) []byte {
	t.Helper()
	file := recording(t, 0)
	le.PutUint16(file[8:], 1)
	le.PutUint16(file[10:], size1)
	s := filled(t)
	for i := range n {
		s.Cookie = uint64(i)
		file = append(file, asVersion1(&s)...)
	}
	return file
}

func TestVersion1IsRead(t *testing.T) {
	const n = 3000 // more than one buffer
	file := recordingVersion1(t, n)
	r, err := NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	want := filled(t)
	want.Control, want.StandsFor = tcp.ControlState{}, 1
	for s := range r.All() {
		want.Cookie = r.Count() - 1
		if *s != want {
			t.Fatalf("got  %+v\nwant %+v", *s, want)
		}
	}
	if r.Count() != n || r.Err() != nil {
		t.Errorf("%d samples of %d, %v", r.Count(), n, r.Err())
	}
	cut, err := NewReader(bytes.NewReader(file[:len(file)-1]))
	if err != nil {
		t.Fatal(err)
	}
	for range cut.All() {
	}
	if cut.Count() != n-1 || cut.Err() == nil {
		t.Errorf("cut short: %d samples, %v", cut.Count(), cut.Err())
	}
}

// The file was written by version 1 itself.
func TestRecordedByVersion1(t *testing.T) {
	file, err := os.ReadFile("../../test/samples/paths.tcpilot")
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if version := le.Uint16(file[8:]); version != 1 {
		t.Fatalf("it has version %d: it must stay what it is", version)
	}
	var again bytes.Buffer
	w, err := NewWriter(&again, r.Meta())
	if err != nil {
		t.Fatal(err)
	}
	var kept []tcp.Sample
	for s := range r.All() {
		kept = append(kept, *s)
		if s.CC == (tcp.CC{}) || !s.Remote.IsValid() || s.BytesAcked == 0 || s.Control != (tcp.ControlState{}) {
			t.Fatalf("sample %d is %+v", r.Count(), *s)
		}
		if err := w.Write(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if len(kept) != 1500 || r.Err() != nil {
		t.Fatalf("%d samples, %v", len(kept), r.Err())
	}
	now, err := NewReader(&again)
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	for s := range now.All() {
		if *s != kept[i] {
			t.Fatalf("sample %d was %+v, is %+v", i, kept[i], *s)
		}
		i++
	}
	if i != len(kept) || now.Err() != nil {
		t.Errorf("%d samples, %v", i, now.Err())
	}
}
