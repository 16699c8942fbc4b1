package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/filelock"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// fileOf returns the bytes of a belief file with n records.
func fileOf(t testing.TB, n int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "beliefs.db")
	s := openNew(t, path)
	all := records(n, 100)
	save(t, s, all)
	save(t, s, all[:n/2])
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// openBytes opens a file with the given contents. It fails the test unless the
// store is usable and the file was kept or moved aside unchanged.
func openBytes(t *testing.T, what string, data []byte) (moved string, n int) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "beliefs.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s, moved, err := Open(path)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer s.Close()
	n = len(load(t, s))
	if err := s.Save(records(50, 100), nil); err != nil {
		t.Fatalf("%s: save: %v", what, err)
	}
	if moved == "" {
		return "", n
	}
	if n != 0 {
		t.Errorf("%s: moved aside, and still %d records", what, n)
	}
	aside, _ := filepath.Glob(path + ".corrupt-*")
	if len(aside) != 1 || !strings.Contains(moved, aside[0]) {
		t.Fatalf("%s: moved to %q, reported %q", what, aside, moved)
	}
	if kept, err := os.ReadFile(aside[0]); err != nil || string(kept) != string(data) {
		t.Errorf("%s: the file that was moved aside was changed (%v)", what, err)
	}
	return moved, n
}

func TestOpenForeign(t *testing.T) {
	random := make([]byte, 100_000)
	rand.NewChaCha8([32]byte{1}).Read(random)
	for name, data := range map[string][]byte{
		"text":   []byte("not a database\n"),
		"random": random,
		"zeroes": make([]byte, 1<<16),
		"1 byte": {0},
		"page":   make([]byte, os.Getpagesize()),
	} {
		if moved, _ := openBytes(t, name, data); !strings.Contains(moved, "not a file of beliefs") {
			t.Errorf("%s: %q", name, moved)
		}
	}
	if moved, n := openBytes(t, "empty", nil); moved != "" || n != 0 {
		t.Errorf("empty file: %q", moved)
	}
}

func TestOpenOtherFormat(t *testing.T) {
	for text, want := range map[string]string{
		"{\n":                                    "not a file of beliefs",
		`{"format":"recipes","schema":6}` + "\n": "not a file of beliefs",
		`{"format":"tcpilot beliefs","schema":6}`:        "not a file of beliefs",
		`{"format":"tcpilot beliefs","schema":2}` + "\n": "schema 2",
		`{"format":"tcpilot beliefs"}` + "\n":            "schema 0",
		`{"format":"tcpilot beliefs","schema":6}` + "\n": "damaged",
	} {
		if moved, _ := openBytes(t, text, []byte(text)); !strings.Contains(moved, want) {
			t.Errorf("%s: %q, want %q", text, moved, want)
		}
	}
}

func TestOpenTruncated(t *testing.T) {
	data := fileOf(t, 500)
	for size := 1; size < len(data); size += len(data)/60 + 1 {
		moved, n := openBytes(t, fmt.Sprint(size), data[:size])
		if moved == "" || n != 0 {
			t.Errorf("%d bytes of %d: moved %q, %d records", size, len(data), moved, n)
		}
	}
}

// If any bit is flipped, the store opens and the file is moved aside.
func TestOpenFlipped(t *testing.T) {
	data := fileOf(t, 500)
	rnd := rand.New(rand.NewPCG(1, 2))
	offsets := make([]int, 0, 1000)
	for at := range 200 { // the line of JSON and the first record
		offsets = append(offsets, at, len(data)-1-at)
	}
	for range 600 {
		offsets = append(offsets, rnd.IntN(len(data)))
	}
	for _, at := range offsets {
		flipped := slices.Clone(data)
		flipped[at] ^= byte(1 << rnd.IntN(8))
		if moved, n := openBytesFast(t, flipped); moved == "" || n != 0 {
			t.Errorf("byte %#x: moved %q, %d records", at, moved, n)
		}
	}
}

// openBytesFast is openBytes without a write, on a memory file system if the host has one,
// because it is called thousands of times.
func openBytesFast(t *testing.T, data []byte) (moved string, n int) {
	t.Helper()
	base := "/dev/shm"
	if unix.Access(base, unix.W_OK) != nil {
		base = ""
	}
	dir, err := os.MkdirTemp(base, "tcpilot-store-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "beliefs.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s, moved, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Load(func(Record) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	return moved, n
}

func FuzzOpen(f *testing.F) {
	f.Add(fileOf(f, 20), 5000, byte(1))
	f.Add([]byte("text"), 0, byte(0))
	f.Fuzz(func(t *testing.T, data []byte, at int, bits byte) {
		if at >= 0 && at < len(data) {
			data[at] ^= bits
		}
		openBytesFast(t, data)
	})
}

func TestOpenMovesEachAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beliefs.db")
	for range 3 {
		if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		s, moved, err := Open(path)
		if err != nil || moved == "" {
			t.Fatalf("%q, %v", moved, err)
		}
		s.Close()
	}
	if aside, _ := filepath.Glob(path + ".corrupt-*"); len(aside) != 3 {
		t.Errorf("moved aside: %q", aside)
	}
}

func TestOpenErrors(t *testing.T) {
	if _, _, err := Open(t.TempDir()); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a directory: %v", err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(fifo); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
	if _, _, err := Open("/proc/tcpilot/beliefs.db"); err == nil {
		t.Error("opened where no file can be")
	}
}

func TestOpenLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beliefs.db")
	s := openNew(t, path)
	save(t, s, records(10, 10))
	if _, moved, err := Open(path); !errors.As(err, new(*filelock.HeldError)) || moved != "" {
		t.Errorf("second open: %v, moved %q", err, moved)
	}
	s.Close()
	s = openNew(t, path)
	if s.count != 10 {
		t.Errorf("%d records", s.count)
	}
}

// mountTmpfs mounts a tmpfs of the given size.
func mountTmpfs(t *testing.T, options string) (dir string) {
	t.Helper()
	testenv.Root(t)
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestRootReadOnlyFileSystem(t *testing.T) {
	dir := mountTmpfs(t, "size=1m")
	path := filepath.Join(dir, "beliefs.db")
	s := openNew(t, path)
	s.Close()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, filepath.Join(dir, "new.db")} {
		if _, moved, err := Open(path); !errors.Is(err, unix.EROFS) || moved != "" {
			t.Errorf("%s: %v, moved %q", path, err, moved)
		}
	}
}

func TestRootDiskFull(t *testing.T) {
	dir := mountTmpfs(t, "size=1m")
	s := openNew(t, filepath.Join(dir, "beliefs.db"))
	few := records(100, 100)
	save(t, s, few)
	if err := s.Save(records(5000, 600), nil); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("save of more than fits: %v", err)
	}
	wantRecords(t, s, few)
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); left != nil {
		t.Errorf("left behind: %q", left)
	}
	save(t, s, few[:10])
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openNew(t, filepath.Join(dir, "beliefs.db"))
	wantRecords(t, s, few)
}
