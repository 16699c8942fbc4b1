package host

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/thread"
)

// NamedNetNS is where ip-netns(8) and CNI runtimes keep named namespaces.
const NamedNetNS = "/run/netns"

// threadNetNS is the namespace of the calling thread. /proc/self/ns/net is that
// of the main thread, which may be the one that InNetNS has just moved.
const threadNetNS = "/proc/thread-self/ns/net"

// NetNSPath is the file of a network namespace that is given by path, by name,
// or as "" for the process's own.
func NetNSPath(name string) string {
	switch {
	case name == "":
		return threadNetNS
	case strings.Contains(name, "/"):
		return name
	}
	return filepath.Join(NamedNetNS, name)
}

// NetNSCookie is the cookie by which BPF knows a network namespace (path or
// name, as NetNSPath takes it). It is not used again until reboot.
func NetNSCookie(name string) (uint64, error) {
	var cookie uint64
	err := InNetNS(name, func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil {
			return fmt.Errorf("read network namespace cookie: %w", err)
		}
		return nil
	})
	return cookie, err
}

// InNetNS runs f on a thread in a network namespace (path or name, as NetNSPath
// takes it). Goroutines that f starts are elsewhere; sockets that it makes keep
// the namespace.
func InNetNS(name string, f func() error) error {
	target, err := openNetNS(NetNSPath(name))
	if err != nil {
		return err
	}
	defer unix.Close(target)
	done := make(chan error)
	go func() { done <- onThread(target, f) }()
	return <-done
}

// onThread leaves its goroutine locked to the thread where the thread cannot be
// brought back: the runtime ends both together. It cannot end the main thread, which
// therefore stays where it is.
func onThread(target int, f func() error) error {
	runtime.LockOSThread()
	if thread.IsMain() {
		defer runtime.UnlockOSThread()
		return thread.Apart(func() error { return onThread(target, f) })
	}
	back, err := openNetNS(threadNetNS)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer unix.Close(back)
	if err := unix.Setns(target, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace: %w", err)
	}
	err = f()
	if unix.Setns(back, unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return err
}

// openNetNS refuses what is no namespace: a name whose mount is gone is left as
// an empty file.
func openNetNS(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open network namespace: %w", &fs.PathError{Op: "open", Path: path, Err: err})
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(fd, &s); err != nil || int64(s.Type) != unix.NSFS_MAGIC {
		unix.Close(fd)
		return -1, fmt.Errorf("open network namespace: %s is not a namespace", path)
	}
	return fd, nil
}

// netNSInode reads the number out of what names a namespace: net:[4026531840].
func netNSInode(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, "net:[")
	digits, end := strings.CutSuffix(digits, "]")
	inode, err := strconv.ParseUint(digits, 10, 64)
	return inode, ok && end && err == nil
}

// readNetNS is the inode of the namespace that a link in /proc shows.
func readNetNS(link string) (uint64, error) {
	name, err := os.Readlink(link)
	if err != nil {
		return 0, fmt.Errorf("read network namespace: %w", err)
	}
	inode, ok := netNSInode(name)
	if !ok {
		return 0, fmt.Errorf("read network namespace: %s is %q", link, name)
	}
	return inode, nil
}
