package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestRootMountBPFFS(t *testing.T) {
	testenv.Root(t)
	system := t.TempDir() // no bpffs
	dir := filepath.Join(t.TempDir(), "run", "bpf")
	path, undo, err := MountBPFFS(system, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { undo() })
	if path != dir || !IsBPFFS(dir) {
		t.Fatalf("mounted at %q, want %q", path, dir)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}

	// The next start after a kill finds what was pinned.
	if err := os.Mkdir(filepath.Join(dir, "v1"), 0o700); err != nil {
		t.Fatal(err)
	}
	again, undoAgain, err := MountBPFFS(system, dir)
	if err != nil || again != dir {
		t.Fatalf("second start: %q, %v", again, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "v1")); err != nil {
		t.Errorf("second start lost what was pinned: %v", err)
	}

	for range 2 {
		if err := undoAgain(); err != nil {
			t.Errorf("undo: %v", err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

func TestRootMountBPFFSUsesTheSystems(t *testing.T) {
	testenv.Root(t)
	system := filepath.Join(t.TempDir(), "system")
	_, unmount, err := MountBPFFS(t.TempDir(), system)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(t.TempDir(), "bpf")
	path, undo, err := MountBPFFS(system, dir)
	if err != nil || path != system {
		t.Fatalf("%q, %v; want %q", path, err, system)
	}
	if err := undo(); err != nil || !IsBPFFS(system) {
		t.Errorf("undo unmounted the system's bpffs (%v)", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s was created", dir)
	}
}

func TestMountBPFFSErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := MountBPFFS(t.TempDir(), file); err == nil {
		t.Error("mounted on a file")
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "keep" {
		t.Errorf("the file is now %q, %v", got, err)
	}
}
