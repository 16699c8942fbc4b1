package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// record makes a record that differs for each i, with a belief of n bytes.
func record(i, n int) Record {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	r := Record{Rule: "default", Prefix: netip.PrefixFrom(addr, 32), Last: int64(i), Belief: make([]byte, n)}
	if i%2 == 1 {
		b := addr.As16()
		b[0] = 0xfd
		r.Prefix = netip.PrefixFrom(netip.AddrFrom16(b), 128)
	}
	rnd := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(i >> 16)})
	rnd.Read(r.Belief)
	return r
}

func records(n, size int) []Record {
	rs := make([]Record, n)
	for i := range rs {
		rs[i] = record(i, size)
	}
	return rs
}

func openNew(t testing.TB, path string) *Store {
	t.Helper()
	s, moved, err := Open(path)
	if err != nil || moved != "" {
		t.Fatalf("open: %v, %q", err, moved)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func load(t testing.TB, s *Store) map[Key]Record {
	t.Helper()
	all := make(map[Key]Record)
	err := s.Load(func(r Record) error {
		all[r.key()] = r
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sameRecord(a, b Record) bool {
	return a.key() == b.key() && a.Last == b.Last && bytes.Equal(a.Belief, b.Belief)
}

func wantRecords(t testing.TB, s *Store, want []Record) {
	t.Helper()
	byKey := make(map[Key]Record, len(want))
	for _, r := range want {
		byKey[r.key()] = r
	}
	got := load(t, s)
	if !maps.EqualFunc(got, byKey, sameRecord) {
		t.Errorf("%d records, want %d, or they differ", len(got), len(byKey))
	}
	if s.count != len(byKey) {
		t.Errorf("count is %d, want %d", s.count, len(byKey))
	}
}

func save(t testing.TB, s *Store, changed []Record, deleted ...Key) {
	t.Helper()
	if err := s.Save(changed, deleted); err != nil {
		t.Fatal(err)
	}
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "beliefs.db")
	want := records(1000, 300)
	want = append(want,
		Record{Rule: "", Prefix: netip.MustParsePrefix("0.0.0.0/0"), Belief: []byte("root")},
		Record{Rule: "", Prefix: netip.MustParsePrefix("::/0"), Belief: []byte("root of six")},
		Record{Rule: "web", Prefix: want[0].Prefix, Belief: nil, Last: -1},
		Record{Rule: "web", Scope: 7, Prefix: want[0].Prefix, Belief: []byte{0}},
	)
	s := openNew(t, path)
	wantRecords(t, s, nil)
	save(t, s, want)
	wantRecords(t, s, want)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = openNew(t, path)
	wantRecords(t, s, want)
	want[1].Belief, want[1].Last = []byte("changed"), 5
	save(t, s, want[1:2], want[0].key(), Key{Rule: "none", Prefix: want[0].Prefix})
	wantRecords(t, s, want[1:])
	save(t, s, want[2:3], want[2].key()) // in both: kept
	save(t, s, nil)
	wantRecords(t, s, want[1:])
}

func TestSaveIsAllOrNothing(t *testing.T) {
	s := openNew(t, filepath.Join(t.TempDir(), "beliefs.db"))
	good := records(10, 10)
	save(t, s, good[:5])
	for name, bad := range map[string]Record{
		"no prefix":   {Rule: "r"},
		"long rule":   {Rule: strings.Repeat("x", maxRule+1), Prefix: good[0].Prefix},
		"long belief": {Prefix: good[0].Prefix, Belief: make([]byte, maxBelief+1)},
	} {
		if err := s.Save([]Record{good[7], bad}, []Key{good[0].key()}); err == nil {
			t.Errorf("%s: saved", name)
		}
		wantRecords(t, s, good[:5])
	}
	if err := s.Save(nil, []Key{{}}); err == nil {
		t.Error("deleted a key without prefix")
	}
	save(t, s, good)
	wantRecords(t, s, good)
}

func TestLoadStops(t *testing.T) {
	s := openNew(t, filepath.Join(t.TempDir(), "beliefs.db"))
	save(t, s, records(10, 10))
	stop := errors.New("stop")
	n := 0
	err := s.Load(func(Record) error { n++; return stop })
	if !errors.Is(err, stop) || n != 1 {
		t.Errorf("%v after %d", err, n)
	}
	if got := load(t, s); len(got) != 10 {
		t.Errorf("then %d records", len(got))
	}
}

func TestLimit(t *testing.T) {
	s := openNew(t, filepath.Join(t.TempDir(), "beliefs.db"))
	s.limit = 800
	all := records(1000, 10)
	save(t, s, all[:800])
	wantRecords(t, s, all[:800])
	save(t, s, all[800:])
	wantRecords(t, s, all[300:]) // the 700 most recently used are left
}

// Records that were last used at the same time are bounded too.
func TestLimitOfTies(t *testing.T) {
	s := openNew(t, filepath.Join(t.TempDir(), "beliefs.db"))
	s.limit = 80
	all := records(100, 10)
	for i := range all {
		all[i].Last = 7
	}
	save(t, s, all)
	if got := len(load(t, s)); got != 70 || s.count != 70 {
		t.Errorf("%d records are left, count is %d, want 70", got, s.count)
	}
}

// The file is replaced, so it may be removed while it is in use.
func TestSaveAfterTheFileWasRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beliefs.db")
	s := openNew(t, path)
	want := records(20, 10)
	save(t, s, want[:10])
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	save(t, s, want[10:])
	wantRecords(t, s, want)
	s.Close()
	wantRecords(t, openNew(t, path), want)
}

// Keep raises the limit.
func TestKeep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beliefs.db")
	s := openNew(t, path)
	const n = maxRecords + 1000
	s.Keep(n)
	s.Keep(10) // never less
	all := records(n, 10)
	for part := range slices.Chunk(all, 1<<16) {
		save(t, s, part)
	}
	if s.count != n {
		t.Errorf("%d records kept of %d", s.count, n)
	}
}

func TestReboot(t *testing.T) {
	defer func(was func() (string, error)) { bootID = was }(bootID)
	boot := func(id string) { bootID = func() (string, error) { return id, nil } }
	path := filepath.Join(t.TempDir(), "beliefs.db")
	shared, scoped := record(1, 10), record(2, 10)
	scoped.Scope = 42
	boot("first")
	s := openNew(t, path)
	save(t, s, []Record{shared, scoped})
	s.Close()
	s = openNew(t, path)
	wantRecords(t, s, []Record{shared, scoped})
	s.Close()
	boot("second")
	for range 2 { // even if nothing was saved in between
		s = openNew(t, path)
		wantRecords(t, s, []Record{shared})
		s.Close()
	}
	s = openNew(t, path)
	save(t, s, []Record{scoped}) // of a new namespace with the same cookie
	wantRecords(t, s, []Record{shared, scoped})
}

func TestClosed(t *testing.T) {
	s := openNew(t, filepath.Join(t.TempDir(), "beliefs.db"))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Save(records(1, 1), nil); !errors.Is(err, errClosed) {
		t.Errorf("save: %v", err)
	}
	if err := s.Load(func(Record) error { return nil }); !errors.Is(err, errClosed) {
		t.Errorf("load: %v", err)
	}
}

func TestKeyRoundTrip(t *testing.T) {
	for _, k := range []Key{
		{"", 0, netip.MustParsePrefix("0.0.0.0/0")},
		{"a rule", 1 << 63, netip.MustParsePrefix("10.1.2.0/24")},
		{"b", 1, netip.MustParsePrefix("2001:db8::/48")},
	} {
		b, err := appendKey(nil, k)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseKey(b); err != nil || got != k {
			t.Errorf("%v became %v, %v", k, got, err)
		}
		for i := range 9 {
			if got, err := parseKey(b[:i]); err == nil {
				t.Errorf("%d bytes of %v became %v", i, k, got)
			}
		}
	}
}

func FuzzParseKey(f *testing.F) {
	r := record(1, 10)
	key, _ := appendKey(nil, r.key())
	f.Add(key)
	f.Fuzz(func(t *testing.T, key []byte) {
		k, err := parseKey(key)
		if err != nil {
			return
		}
		if again, err := appendKey(nil, k); len(k.Rule) <= maxRule && (err != nil || !bytes.Equal(again, key)) {
			t.Errorf("key %x became %x, %v", key, again, err)
		}
	})
}

// BenchmarkSave writes a batch of 10,000 changed beliefs of 600 bytes.
func BenchmarkSave(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := openNew(b, filepath.Join(b.TempDir(), "beliefs.db"))
			all := records(10_000, 600)
			save(b, s, all)
			for b.Loop() {
				save(b, s, all[:n])
			}
		})
	}
}

// BenchmarkOpen opens and loads a file of 10,000 beliefs of 600 bytes.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "beliefs.db")
	s := openNew(b, path)
	save(b, s, records(10_000, 600))
	s.Close()
	for b.Loop() {
		s := openNew(b, path)
		n := 0
		s.Load(func(Record) error { n++; return nil })
		if n != 10_000 {
			b.Fatal(n)
		}
		s.Close()
	}
}

// Records that have expired are dropped by the next save, except those that it changes.
func TestExpire(t *testing.T) {
	s := openNew(t, filepath.Join(t.TempDir(), "beliefs.db"))
	all := records(20, 10)
	all[3].Rule, all[15].Rule = "gone", "gone"
	save(t, s, all)
	s.Expire(func(rule string, last int64) bool { return rule == "gone" || last < 8 })
	wantRecords(t, s, all)
	save(t, s, []Record{all[2]})
	want := append([]Record{all[2]}, all[8:15]...)
	wantRecords(t, s, append(want, all[16:]...))
}
