package cc

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const testName = "tcpilot_test"

// rig is a catalogue in a BPF file system of the test's own, and a namespace to
// make connections in.
type rig struct {
	*Catalogue
	dir   string
	known []Control
	ns    *testenv.NS
}

// newRig knows one control, testName.
func newRig(t testing.TB) *rig {
	t.Helper()
	requireControls(t)
	fs := t.TempDir()
	t.Cleanup(func() { // the next test must not find them registered
		for _, o := range append(renamedEmbedded(), plain(testName)) {
			must(t, waitUnregistered(o.name()))
		}
	})
	testenv.MountBPFFS(t, fs)
	r := &rig{dir: filepath.Join(fs, "cc"), known: []Control{plain(testName)}, ns: testenv.NetNS(t)}
	r.open(t)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// requireControls skips the test on a kernel that supports no control at all.
// TestRootUnsupportedReason tells such a kernel from a broken test.
func requireControls(t testing.TB) {
	t.Helper()
	testenv.Root(t)
	if err := plain(testName).try(); errors.Is(err, errNoLinks) {
		testenv.Missing(t, err.Error())
	}
}

func (r *rig) open(t testing.TB) {
	t.Helper()
	c, err := open(r.dir, slog.New(slog.NewTextHandler(io.Discard, nil)), r.known)
	must(t, err)
	r.Catalogue = c
}

// restart ends the catalogue of one process and opens that of the next.
func (r *rig) restart(t testing.TB) {
	t.Helper()
	must(t, r.Close())
	r.open(t)
}

func plain(name string) Control {
	return Control{Control: congestion.Control{CC: tcp.CCOf(name)}, Source: "RFC 5681", Version: version(_PlainBytes), elf: _PlainBytes}
}

// renamedEmbedded are tcpilot's own controls under other names, because a daemon may have
// registered them under theirs.
func renamedEmbedded() []Control {
	all := embedded()
	for i := range all {
		all[i].CC = tcp.CCOf("test_" + strings.TrimPrefix(all[i].name(), congestion.Prefix))
	}
	return all
}

// The faults of testdata/plain.bpf.c.
const (
	faultShut = 1 + iota
	faultStall
	faultBlind
)

func broken(name string, fault uint32) Control {
	o := plain(name)
	o.knobs = map[string]any{"fault": fault}
	return o
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, f func() error) {
	t.Helper()
	var err error
	for range 3000 {
		if err = f(); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error(err)
}

func registered(t testing.TB, name string) bool {
	t.Helper()
	return slices.Contains(strings.Fields(testenv.ReadSysctl(t, nil, "net.ipv4.tcp_available_congestion_control")), name)
}

// row returns the entry of the list that has the name.
func (r *rig) row(t testing.TB, name string) Control {
	t.Helper()
	rows, err := r.List()
	must(t, err)
	for _, c := range rows {
		if c.name() == name {
			return c
		}
	}
	t.Fatalf("no %q in %+v", name, rows)
	return Control{}
}

// pair connects with a congestion control, over loopback.
func (r *rig) pair(t testing.TB, name string) (c, s net.Conn) {
	t.Helper()
	l := r.ns.Listen(t, "tcp", "127.0.0.1:0")
	defer l.Close()
	c = r.ns.Dial(t, "tcp", l.Addr().String())
	must(t, setCC(c, name))
	s, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return c, s
}

// control uses the descriptor of a connection or a listener.
func control(c any, f func(fd int) error) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	return onDescriptor(raw, f)
}

func setCC(c any, name string) error {
	return control(c, func(fd int) error {
		return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	})
}

func ccOf(t testing.TB, c net.Conn) (name string) {
	t.Helper()
	must(t, control(c, func(fd int) (err error) {
		name, err = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		return err
	}))
	return strings.TrimRight(name, "\x00")
}

// exchange sends n bytes from c to s.
func exchange(t testing.TB, c, s net.Conn, n int) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, n))
		done <- err
	}()
	must(t, s.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := io.ReadFull(s, make([]byte, n))
	must(t, err)
	must(t, <-done)
}

func tcpInfo(t testing.TB, c net.Conn) (info *unix.TCPInfo) {
	t.Helper()
	must(t, control(c, func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	}))
	return info
}

func pins(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
