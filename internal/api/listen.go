package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Listen creates the unix socket at path with the given permissions and group (-1 keeps the
// group). The socket appears with its permissions already set. A socket that nobody listens on
// is replaced; a socket in use, or anything that is not a socket, is an error. Closing the
// listener removes the socket.
func Listen(path string, mode fs.FileMode, gid int) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make socket directory: %w", err)
	}
	if err := checkFree(path); err != nil {
		return nil, err
	}
	// The socket is created where nobody else can reach it, and moved when it is ready.
	aside, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	defer os.RemoveAll(aside)
	tmp := filepath.Join(aside, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	info, err := publish(tmp, path, mode, gid)
	if err != nil {
		l.Close()
		return nil, err
	}
	return &listener{UnixListener: l, path: path, info: info}, nil
}

// checkFree returns nil if nothing is at path, or a socket nobody listens on.
func checkFree(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("inspect socket: %w", err)
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("make socket %s: something that is not a socket is there", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("make socket %s: another tcpilot listens on it", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make socket %s: ask whether it is in use: %w", path, err)
	}
	return nil
}

func publish(tmp, path string, mode fs.FileMode, gid int) (fs.FileInfo, error) {
	if err := os.Chmod(tmp, mode); err != nil {
		return nil, fmt.Errorf("set socket permissions: %w", err)
	}
	if gid >= 0 {
		if err := os.Lchown(tmp, -1, gid); err != nil {
			return nil, fmt.Errorf("set socket group: %w", err)
		}
	}
	info, err := os.Lstat(tmp)
	if err != nil {
		return nil, fmt.Errorf("inspect socket: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return nil, fmt.Errorf("place socket: %w", err)
	}
	return info, nil
}

// listener removes its socket when it is closed, unless another one has replaced it.
type listener struct {
	*net.UnixListener
	path string
	info fs.FileInfo
	once sync.Once
}

// Close stops listening and removes the socket.
func (l *listener) Close() error {
	l.once.Do(func() {
		if fi, err := os.Lstat(l.path); err == nil && os.SameFile(fi, l.info) {
			os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// Addr is the socket's address.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }
