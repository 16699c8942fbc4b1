package cc

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// file writes an object file.
func file(t testing.TB, elf []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "user.o")
	must(t, os.WriteFile(name, elf, 0o600))
	return name
}

// changed is the plain object with one string replaced by another of the same length.
func changed(t testing.TB, from, to string) []byte {
	t.Helper()
	if len(from) != len(to) || !bytes.Contains(_PlainBytes, []byte(from)) {
		t.Fatalf("cannot replace %q by %q", from, to)
	}
	return bytes.ReplaceAll(_PlainBytes, []byte(from), []byte(to))
}

func TestRootUserControlRefused(t *testing.T) {
	r := newRig(t)
	good, large := file(t, _PlainBytes), file(t, nil)
	must(t, os.Truncate(large, maxObject+1))
	for _, c := range []struct{ name, file, want string }{
		{"mine", filepath.Join(t.TempDir(), "missing.o"), "no such file"},
		{"mine", file(t, []byte("#!/bin/sh\n")), "not an eBPF ELF object"},
		{"mine", "/proc/self/exe", "not an eBPF ELF object"},
		{"mine", large, "larger than 16 MB"},
		{"mine", "/dev/zero", "not a regular file"},
		{"mine", file(t, changed(t, "Dual BSD/GPL", "Proprietary.")), "not compatible with the GPL"},
		{"", good, "1 to 15 letters"},
		{"../escape", good, "1 to 15 letters"},
		{"a.b", good, "1 to 15 letters"},
		{"a-b", good, "1 to 15 letters"},
		{"sixteen_letters_", good, "1 to 15 letters"},
		{"tcpilot_mine", good, "reserved for tcpilot"},
		{"vegas", good, "the kernel's own"},
		{"cubic", good, "the kernel's own"},
	} {
		if err := r.LoadUser(t.Context(), c.name, c.file, false); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q of %s: %.300v; want %q", c.name, c.file, err, c.want)
		}
	}
	if left := pins(t, r.dir); len(left) != 0 {
		t.Errorf("pins %v are left", left)
	}
}

func TestRootUserControlLifecycle(t *testing.T) {
	r := newRig(t)
	good := file(t, _PlainBytes)
	must(t, r.LoadUser(t.Context(), "mine", good, false))
	if row := r.row(t, "mine"); !row.User || !row.ByName || row.Source != good || row.State != Loaded || !registered(t, "mine") {
		t.Errorf("loaded: %+v", row)
	}
	other := newRig(t)
	if err := other.LoadUser(t.Context(), "mine", good, false); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("registered under another process's name: %v", err)
	}
	r.restart(t)
	must(t, r.LoadUser(t.Context(), "mine", good, true))
	r.restart(t)
	if row := r.row(t, "mine"); !row.User || row.ByName || row.Source != good {
		t.Errorf("adopted: %+v", row)
	}
	c, s := r.pair(t, "mine")
	newer := file(t, append(bytes.Clone(_PlainBytes), 0)) // another hash
	must(t, r.LoadUser(t.Context(), "mine", newer, false))
	r.restart(t)
	if row := r.row(t, "mine"); !row.User || !row.ByName || row.Source != newer || row.Connections != 0 {
		t.Errorf("upgraded: %+v", row)
	}
	exchange(t, c, s, 1<<20)
	_, err := r.Unload("mine")
	must(t, err)
	if registered(t, "mine") || len(pins(t, r.dir)) != 0 {
		t.Errorf("unloaded: pins %v", pins(t, r.dir))
	}
	exchange(t, c, s, 1<<20)
}
