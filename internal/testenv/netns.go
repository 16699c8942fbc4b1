package testenv

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
)

// NS is a network namespace that lives as long as its test.
type NS struct {
	file *os.File
}

// NetNS creates a network namespace with lo up. The caller does not enter it: see Do and
// Enter.
func NetNS(t testing.TB) *NS {
	t.Helper()
	Root(t)
	file, err := newNetNS()
	if err != nil {
		t.Fatal(err)
	}
	n := &NS{file: file}
	t.Cleanup(func() { file.Close() })
	h := n.netlink(t)
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatalf("set lo up: %v", err)
	}
	return n
}

// OpenNetNS opens the network namespace at a path. The caller does not enter it.
func OpenNetNS(t testing.TB, path string) *NS {
	t.Helper()
	Root(t)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return &NS{file: file}
}

func newNetNS() (file *os.File, err error) {
	err = netns.InNew(func() error {
		file, err = os.Open(netns.Own)
		return err
	})
	return file, err
}

// Path is a file by which any process can open the namespace while the test runs.
func (n *NS) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd())
}

// FD is the namespace's descriptor, owned by n.
func (n *NS) FD() int { return int(n.file.Fd()) }

// netlink opens a netlink handle in the namespace.
func (n *NS) netlink(t testing.TB) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandleAt(vnetns.NsHandle(n.file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatalf("open netlink: %v", err)
	}
	return h
}

// Do runs f on the calling goroutine with its thread in the namespace. f may
// call t.Fatal. Goroutines that f starts are not in the namespace; sockets stay in the
// namespace in which they were created.
func (n *NS) Do(t testing.TB, f func()) {
	t.Helper()
	leave := n.enter(t)
	defer leave()
	f()
}

// Enter moves the test's goroutine and thread into the namespace until the test
// ends. It must be called from the test's own goroutine.
func (n *NS) Enter(t testing.TB) {
	t.Helper()
	t.Cleanup(n.enter(t))
}

func (n *NS) enter(t testing.TB) (leave func()) {
	t.Helper()
	if n == nil {
		return func() {}
	}
	back, err := netns.Enter(n.FD())
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := back(); err != nil {
			t.Error(err) // the thread ends with the test's goroutine
		}
	}
}

// Listen listens in the namespace; the listener is closed when the test ends.
func (n *NS) Listen(t testing.TB, network, address string) net.Listener {
	t.Helper()
	var l net.Listener
	n.Do(t, func() {
		var err error
		if l, err = net.Listen(network, address); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { l.Close() })
	return l
}

// Dial connects from the namespace to a literal address. A name would be
// resolved, and perhaps dialled, on another thread.
func (n *NS) Dial(t testing.TB, network, address string) net.Conn {
	t.Helper()
	var c net.Conn
	n.Do(t, func() {
		var err error
		if c, err = net.Dial(network, address); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// Speak sends a line over TCP to a server in another namespace, checks that it comes back, and returns
// the client's address as the server sees it. The server listens on the address listen. The client
// connects to the address connect, or to the server's own if that is empty, within the time limit.
func (n *NS) Speak(t testing.TB, server *NS, listen, connect string, limit time.Duration) netip.Addr {
	t.Helper()
	l := server.Listen(t, "tcp", listen)
	defer l.Close()
	if connect == "" {
		connect = l.Addr().String()
	}
	seen := make(chan netip.Addr, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			seen <- netip.Addr{}
			return
		}
		defer c.Close()
		io.Copy(c, c)
		seen <- c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	}()
	n.Do(t, func() {
		c, err := (&net.Dialer{Timeout: limit}).Dial("tcp", connect)
		if err != nil {
			t.Error(err)
			l.Close()
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		io.WriteString(c, "hello")
		c.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(c); string(got) != "hello" {
			t.Errorf("to %s: %q, %v", connect, got, err)
		}
	})
	return <-seen
}

// Start starts a command in the namespace and kills it when the test ends.
func (n *NS) Start(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	n.Do(t, func() {
		if err := cmd.Start(); err != nil {
			cancel()
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		cmd.Wait() // killed, or already waited for by the test
	})
	return cmd
}

// Run runs a command in the namespace to its end and returns what it printed.
func (n *NS) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	var out []byte
	n.Do(t, func() {
		var err error
		if out, err = exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	})
	return string(out)
}
