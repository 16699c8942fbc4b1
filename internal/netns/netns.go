package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/thread"
)

// Dir is where ip-netns(8) and CNI runtimes keep named namespaces.
const Dir = "/run/netns"

// Own is the file of the calling thread's namespace. /proc/self/ns/net is that of the main
// thread, which may be in another namespace.
const Own = "/proc/thread-self/ns/net"

// Path is the file of a namespace that is given by its path, by its name in Dir, or as "" for
// the calling thread's own.
func Path(name string) string {
	switch {
	case name == "":
		return Own
	case strings.Contains(name, "/"):
		return name
	}
	return filepath.Join(Dir, name)
}

// In runs f on a thread in a namespace (path or name, as for Path). Goroutines that f starts
// are not in the namespace; sockets that f creates stay in it.
func In(name string, f func() error) error {
	ns, err := open(Path(name))
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	return Do(ns, f)
}

// InSame is In for a namespace whose cookie is known. If name leads to another namespace by now, f does not
// run, and the error is fs.ErrNotExist. A path in /proc does so when its process has moved, or when another
// process has its id; a name leads to an empty file when it is unmounted.
func InSame(name string, cookie uint64, f func() error) error {
	err := In(name, func() error {
		now, err := ownCookie()
		if err != nil {
			return err
		}
		if now != cookie {
			return fmt.Errorf("enter network namespace: %w: %s is another one now", fs.ErrNotExist, Path(name))
		}
		return f()
	})
	if errors.Is(err, errNotNamespace) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

// Do is In for an open descriptor of a namespace.
func Do(ns int, f func() error) error {
	done := make(chan error)
	go func() { done <- do(ns, f) }()
	return <-done
}

// do never moves the main thread, which cannot be terminated if moving it back fails.
func do(ns int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if thread.IsMain() {
		return thread.Apart(func() error { return do(ns, f) })
	}
	leave, err := Enter(ns)
	if err != nil {
		return err
	}
	err = f()
	_ = leave() // after an error the thread stays locked, and ends with this goroutine
	return err
}

// Enter moves the calling goroutine and its thread into a namespace. leave moves both back;
// if that fails, the goroutine stays locked to the thread, so that the runtime terminates the
// thread when the goroutine ends.
func Enter(ns int) (leave func() error, err error) {
	runtime.LockOSThread()
	back, err := open(Own)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		unix.Close(back)
		runtime.UnlockOSThread()
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("needs CAP_SYS_ADMIN: %w", err)
		}
		return nil, fmt.Errorf("enter network namespace: %w", err)
	}
	return func() error {
		defer unix.Close(back)
		if err := unix.Setns(back, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("leave network namespace: %w", err)
		}
		runtime.UnlockOSThread()
		return nil
	}, nil
}

// InNew runs f in a new namespace. The namespace ends with the thread, unless something that f
// created keeps it alive.
func InNew(f func() error) error {
	return thread.Apart(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace: %w", err)
		}
		return f()
	})
}

// Cookie is the number that identifies a namespace (path or name, as for Path), as
// bpf_get_netns_cookie returns it. It is not used again until reboot.
func Cookie(name string) (cookie uint64, err error) {
	err = In(name, func() error {
		cookie, err = ownCookie()
		return err
	})
	return cookie, err
}

// ownCookie is the cookie of the calling thread's namespace.
func ownCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read network namespace cookie: %w", err)
	}
	return cookie, nil
}

var errNotNamespace = errors.New("is not a namespace")

// open refuses a file that is not a namespace: when the mount of a name is gone, an empty file
// remains.
func open(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open network namespace: %w", &fs.PathError{Op: "open", Path: path, Err: err})
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(fd, &s); err != nil || int64(s.Type) != unix.NSFS_MAGIC {
		unix.Close(fd)
		return -1, fmt.Errorf("open network namespace: %s %w", path, errNotNamespace)
	}
	return fd, nil
}
