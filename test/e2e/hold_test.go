package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// holdEnv makes this program one end of connections that send nothing at first: its value is a holdSpec.
const holdEnv = "TCPILOT_HOLD"

type holdSpec struct {
	Listen string // the receiver
	To     string // the sender
}

// runIfHold does not return if this process is such an end.
func runIfHold() {
	text := os.Getenv(holdEnv)
	if text == "" {
		return
	}
	var s holdSpec
	err := json.Unmarshal([]byte(text), &s)
	if err == nil && s.Listen != "" {
		err = s.receive()
	} else if err == nil {
		err = s.send()
	}
	fmt.Fprintln(os.Stderr, "held connections:", err)
	os.Exit(1)
}

// receive prints its address, and reads what is sent to it.
func (s *holdSpec) receive() error {
	l, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(io.Discard, c) }()
	}
}

// send makes a connection that keeps its arm and one that does not, and prints a line. Once it reads one, both send as much
// as they can.
func (s *holdSpec) send() error {
	var conns []net.Conn
	for _, keeps := range []bool{true, false} {
		c, err := s.dial(keeps)
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	errs := make(chan error)
	for _, c := range conns {
		go func() {
			for data := make([]byte, 1<<16); ; {
				if _, err := c.Write(data); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	return <-errs
}

// dial makes connections until one keeps its arm, or does not.
func (s *holdSpec) dial(keeps bool) (net.Conn, error) {
	for range 1000 {
		c, err := net.Dial("tcp", s.To)
		if err != nil {
			return nil, err
		}
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			return nil, err
		}
		var cookie uint64
		if e := raw.Control(func(fd uintptr) { cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) }); e != nil || err != nil {
			return nil, errors.Join(e, err)
		}
		if keepsArm(cookie) == keeps {
			return c, nil
		}
		if err := c.Close(); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("no connection with such a cookie")
}

// hold makes a connection to a remote that keeps its arm and one that does not. They send once begin is called.
func (w *world) hold(t *testing.T, r *remote) (begin func()) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	start := func(s holdSpec, run func(*exec.Cmd) error) (line string, in io.Writer) {
		t.Helper()
		text, err := json.Marshal(s)
		must(t, err)
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env, cmd.Stderr = append(os.Environ(), holdEnv+"="+string(text)), os.Stderr
		out, err := cmd.StdoutPipe()
		must(t, err)
		in, err = cmd.StdinPipe()
		must(t, err)
		must(t, run(cmd))
		t.Cleanup(func() { _ = cmd.Wait() }) // killed by the end of the context
		line, err = bufio.NewReader(out).ReadString('\n')
		must(t, err)
		return line[:len(line)-1], in
	}
	at, _ := start(holdSpec{Listen: netip.AddrPortFrom(r.Addr4, 0).String()}, r.Host.Start)
	_, in := start(holdSpec{To: at}, func(cmd *exec.Cmd) error {
		w.cgroup.Put(cmd)
		return w.star.Client.Start(cmd)
	})
	return func() {
		t.Helper()
		_, err := fmt.Fprintln(in)
		must(t, err)
	}
}
