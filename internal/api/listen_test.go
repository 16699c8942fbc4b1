package api

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// socketPath returns a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tcpilot")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "run", "s")
}

func TestListenSetsPermissionsAndRemovesOnClose(t *testing.T) {
	path := socketPath(t)
	l, err := Listen(path, 0o620, os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode() != fs.ModeSocket|0o620 {
		t.Errorf("mode %v, want a socket with 0620", fi.Mode())
	}
	if l.Addr().String() != path {
		t.Errorf("Addr = %s, want %s", l.Addr(), path)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	path := socketPath(t)
	stale, err := Listen(path, 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	// A daemon that was killed closes the descriptor, but removes nothing.
	stale.(*listener).UnixListener.Close()
	l, err := Listen(path, 0o600, -1)
	if err != nil {
		t.Fatalf("stale socket was not replaced: %v", err)
	}
	defer l.Close()
	stale.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the old listener removed its successor's socket: %v", err)
	}
}

func TestListenRefuses(t *testing.T) {
	t.Run("a socket in use", func(t *testing.T) {
		path := socketPath(t)
		l, err := Listen(path, 0o600, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := Listen(path, 0o600, -1); err == nil || !strings.Contains(err.Error(), "another tcpilot listens") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(path, 0o600, -1); err == nil || !strings.Contains(err.Error(), "not a socket") {
			t.Errorf("error %v", err)
		}
		if b, err := os.ReadFile(path); string(b) != "precious" {
			t.Errorf("the file was touched: %q, %v", b, err)
		}
	})
	t.Run("a path that is too long", func(t *testing.T) {
		if _, err := Listen(filepath.Join(t.TempDir(), strings.Repeat("x", 100), "s"), 0o600, -1); err == nil {
			t.Error("no error")
		}
	})
	t.Run("a directory that cannot be made", func(t *testing.T) {
		if _, err := Listen("/dev/null/s", 0o600, -1); err == nil || !strings.Contains(err.Error(), "make socket directory") {
			t.Errorf("error %v", err)
		}
	})
}
