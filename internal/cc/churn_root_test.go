package cc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// newEmbeddedRig has tcpilot's own controls under names of the tests. ECN is on in its
// namespace, because without it some of them change to reno.
func newEmbeddedRig(t testing.TB) *rig {
	t.Helper()
	r := newRig(t)
	r.known = renamedEmbedded()
	r.restart(t)
	testenv.Sysctl(t, r.ns, "net.ipv4.tcp_ecn", "1")
	return r
}

// TestRootChurn: thousands of connections open and close under each of tcpilot's own
// controls, by reset and by FIN in turns. No connection keeps a reference, and after
// unloading nothing is left: no program, and no map that could hold memory of a socket.
//
// 3,000 connections for each control, or 30,000 if TCPILOT_FULL=1.
func TestRootChurn(t *testing.T) {
	r := newEmbeddedRig(t)
	count := 3000
	if os.Getenv("TCPILOT_FULL") == "1" {
		count = 30_000
	}
	taint := testenv.ReadSysctl(t, nil, "kernel.tainted")
	for _, o := range r.known {
		must(t, r.Load(t.Context(), o.name()))
		left := footprint(t, r.row(t, o.name()))
		begin := time.Now()
		r.churn(t, o.name(), count)
		t.Logf("%s: %d connections in %s", o.name(), count, time.Since(begin))
		eventually(t, func() error {
			if n := r.row(t, o.name()).Connections; n != 0 {
				return fmt.Errorf("%s has %d connections left", o.name(), n)
			}
			return nil
		})
		if n, err := r.Unload(o.name()); n != 0 || err != nil {
			t.Errorf("%s: unloaded with %d connections, %v", o.name(), n, err)
		}
		eventually(t, func() error { return left.gone(o.name()) })
	}
	if now := testenv.ReadSysctl(t, nil, "kernel.tainted"); now != taint {
		t.Errorf("kernel.tainted is %s, was %s", now, taint)
	}
}

// churn makes count connections with both ends under a control, a few dozen at a time.
func (r *rig) churn(t *testing.T, cc string, count int) {
	t.Helper()
	l := r.ns.Listen(t, "tcp4", "127.0.0.1:0")
	defer l.Close()
	must(t, setCC(l, cc))
	var open [][2]net.Conn
	made := 0
	end := func() {
		for _, c := range open[0] {
			if made%4 != 0 { // otherwise it stays in FIN_WAIT and TIME_WAIT
				must(t, c.(*net.TCPConn).SetLinger(0))
			}
			must(t, c.Close())
		}
		open = open[1:]
	}
	const bytes, together = 20_000, 50
	buf := make([]byte, bytes)
	r.ns.Do(t, func() {
		for ; made < count; made++ {
			c, err := net.Dial("tcp4", l.Addr().String())
			must(t, err)
			s, err := l.Accept()
			must(t, errors.Join(err, setCC(c, cc)))
			if client, server := ccOf(t, c), ccOf(t, s); client != cc || server != cc {
				t.Fatalf("connection %d has %s and %s, want %s", made, client, server, cc)
			}
			_, err = c.Write(buf)
			must(t, err)
			_, err = io.ReadFull(s, buf)
			must(t, err)
			if open = append(open, [2]net.Conn{c, s}); len(open) > together {
				end()
			}
		}
	})
	for len(open) > 0 {
		end()
	}
}

// kernelParts are the programs and maps of a control.
type kernelParts struct {
	programs []ebpf.ProgramID
	maps     []ebpf.MapID
}

func footprint(t *testing.T, row Control) (k kernelParts) {
	t.Helper()
	for _, program := range row.Programs {
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(program.ID))
		must(t, err)
		info, err := p.Info()
		must(t, errors.Join(err, p.Close()))
		maps, _ := info.MapIDs()
		k.programs = append(k.programs, ebpf.ProgramID(program.ID))
		k.maps = append(k.maps, maps...)
	}
	return k
}

// gone returns an error that names what is left in the kernel.
func (k kernelParts) gone(cc string) error {
	for _, id := range k.programs {
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			return errors.Join(fmt.Errorf("program %d of %s is left", id, cc), p.Close())
		}
	}
	for _, id := range k.maps {
		if m, err := ebpf.NewMapFromID(id); err == nil {
			return errors.Join(fmt.Errorf("map %d of %s is left", id, cc), m.Close())
		}
	}
	return nil
}

// TestRootUpgradeUnderTraffic: repeated loading, upgrading and unloading of each control
// neither ends connections that send with it nor loses a byte.
func TestRootUpgradeUnderTraffic(t *testing.T) {
	r := newEmbeddedRig(t)
	const flows, changes = 4, 9
	for i := range r.known {
		o := &r.known[i]
		must(t, r.Load(t.Context(), o.name()))
		stop, done := make(chan struct{}), make(chan error, flows)
		for range flows {
			c, s := r.pair(t, o.name())
			must(t, control(c, func(fd int) error { // slow enough to leave CPU time for the changes
				return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 2<<20)
			}))
			go func() { done <- keepSending(c.(*net.TCPConn), s.(*net.TCPConn), stop) }()
		}
		for n := range changes {
			r.change(t, o, n)
		}
		close(stop)
		for range flows {
			if err := <-done; err != nil {
				t.Errorf("%s: %v", o.name(), err)
			}
		}
	}
}

// keepSending sends, and compares what arrives, until it is stopped.
func keepSending(c, s *net.TCPConn, stop <-chan struct{}) error {
	for {
		if _, err := deliver(context.Background(), c, s, 256<<10, time.Minute); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

// change upgrades a control, or every third time unloads and loads it, and checks that
// new connections get it.
func (r *rig) change(t *testing.T, o *Control, n int) {
	t.Helper()
	if n%3 == 2 {
		_, err := r.Unload(o.name())
		must(t, err)
	}
	o.Version = fmt.Sprintf("v%d", n)
	must(t, r.Load(t.Context(), o.name()))
	if row := r.row(t, o.name()); row.Version != o.Version || row.Outdated {
		t.Errorf("%s: in force is %q, want %q", o.name(), row.Version, o.Version)
	}
	c, s := r.pair(t, o.name())
	exchange(t, c, s, 64<<10)
	must(t, errors.Join(c.Close(), s.Close()))
	if !slices.Equal(pins(t, r.registered[o.name()].path), sorted(linkPin, o.Version)) {
		t.Errorf("%s: pins %v", o.name(), pins(t, r.registered[o.name()].path))
	}
}
