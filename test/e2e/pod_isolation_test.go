package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// ofPods are the capabilities that container runtimes give by default, and NET_ADMIN, which pods may ask for.
var ofPods = []string{"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP", "NET_BIND_SERVICE",
	"SYS_CHROOT", "KILL", "AUDIT_WRITE", "NET_ADMIN"}

// attacks is what a process tries against tcpilot.
type attacks struct {
	Socket, ReadSocket, Pin string
	Loopback, Node, Open    string // addresses: of metrics, of metrics at the node, of a server of the node that anybody may use
	Daemon                  int
	Program                 ebpf.ProgramID
	Map                     ebpf.MapID
	Link                    link.ID
	Device                  int
	TCX                     bool   // the kernel has it
	Cgroup                  string // with tcpilot's program
}

// attack prints the errors of all attacks, which are empty for those that succeed.
func (c *container) attack() error {
	if err := c.dropCapabilities(); err != nil {
		return err
	}
	a, got := c.Attack, map[string]string{}
	try := func(what string, f func() error) {
		got[what] = ""
		if err := f(); err != nil {
			got[what] = err.Error()
		}
	}
	dial := func(network, address string) func() error {
		return func() error {
			conn, err := net.DialTimeout(network, address, 10*time.Second)
			if err == nil {
				err = conn.Close()
			}
			return err
		}
	}
	try("connect to the socket", dial("unix", a.Socket))
	try("connect to the socket for reading", dial("unix", a.ReadSocket))
	try("connect to the port of metrics at loopback", dial("tcp", a.Loopback))
	try("connect to the port of metrics at the node", dial("tcp", a.Node))
	try("connect to a server at the node", dial("tcp", a.Open))
	try("send the daemon a signal", func() error { return unix.Kill(a.Daemon, 0) })
	try("list programs", func() error { _, err := ebpf.ProgramGetNextID(0); return err })
	try("list maps", func() error { _, err := ebpf.MapGetNextID(0); return err })
	try("open a program", func() error { return closed(ebpf.NewProgramFromID(a.Program)) })
	try("open a map", func() error { return closed(ebpf.NewMapFromID(a.Map)) })
	try("open a link", func() error { return closed(link.NewFromID(a.Link)) })
	try("open a pin", func() error { return closed(ebpf.LoadPinnedMap(a.Pin, nil)) })
	try("mount a BPF file system", func() error { return unix.Mount("bpf", "/proc", "bpf", 0, "") }) // in its own mounts
	try("list programs of the device", func() error {
		n := 0
		on, err := link.QueryPrograms(link.QueryOptions{Target: a.Device, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			n = len(on.Programs)
		} else if !a.TCX { // filters
			err = rtnetlink.EachFilter(a.Device, rtnetlink.Ingress, func(rtnetlink.Filter) bool { n++; return true })
		}
		if err == nil && n == 0 {
			err = errors.New("there are none")
		}
		return err
	})
	const before = 1 << 3 // BPF_F_BEFORE: the first one
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		try(fmt.Sprint("detach from the device, ", at), func() error { return detach(a.Device, at, before) })
	}
	try("detach from the cgroup", func() error {
		dir, err := os.Open(a.Cgroup)
		if err != nil {
			return err
		}
		defer dir.Close()
		return detach(int(dir.Fd()), ebpf.AttachCGroupSockOps, 0)
	})
	return json.NewEncoder(os.Stdout).Encode(got)
}

// detach detaches any program from a hook (BPF_PROG_DETACH).
func detach(target int, at ebpf.AttachType, flags uint32) error {
	const command = 9
	attr := struct {
		target, program, at, flags, replace, relative uint32
		revision                                      uint64
	}{target: uint32(target), at: uint32(at), flags: flags}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)); errno != 0 {
		return errno
	}
	return nil
}

// dropCapabilities leaves the calling thread those of the container. The test's program may need libraries, which are not in
// the container's root, so that it cannot be executed there.
func (c *container) dropCapabilities() error {
	if c.Root == "" {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for bit, name := range capabilities {
		if slices.Contains(c.Capabilities, name) {
			data[bit/32].Effective |= 1 << (bit % 32)
			data[bit/32].Permitted |= 1 << (bit % 32)
		}
	}
	return unix.Capset(&header, &data[0])
}

func closed[T interface{ Close() error }](object T, err error) error {
	if err != nil {
		return err
	}
	return object.Close()
}

// run starts the attacks in the network of a host, and returns their errors.
func (a *attacks) run(t *testing.T, h *topology.Host, c container) (errs map[string]string) {
	t.Helper()
	c.Attack = a
	cmd := c.command(t)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	must(t, h.Start(cmd))
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	must(t, json.Unmarshal(out.Bytes(), &errs))
	return errs
}

// hooks are the program at the cgroup, and those at the node's end of the pod's pair, with their links or filters.
func (n *podNode) hooks(t *testing.T, device int) (programs []testenv.ClsProgram) {
	t.Helper()
	dir, err := os.Open(n.cgroup.Path)
	must(t, err)
	defer dir.Close()
	on, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupSockOps})
	if err != nil || len(on.Programs) != 1 {
		t.Fatalf("programs at the cgroup: %+v, %v", on, err)
	}
	programs = append(programs, testenv.ClsProgram{ID: on.Programs[0].ID})
	must(t, n.star.Client.Do(func() error {
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			here := testenv.ClsPrograms(t, device, at)
			if len(here) != 1 {
				return fmt.Errorf("%v: %d programs", at, len(here))
			}
			programs = append(programs, here...)
		}
		return nil
	}))
	return programs
}

// linkOf is the id of the link by which a program is attached.
func linkOf(t *testing.T, program ebpf.ProgramID) (id link.ID) {
	t.Helper()
	links := new(link.Iterator)
	defer links.Close()
	for links.Next() {
		if info, err := links.Link.Info(); err == nil && info.Program == program {
			id = info.ID
		}
	}
	must(t, links.Err())
	return id
}

// A process in a pod, root with the capabilities that pods usually have and NET_ADMIN, does not reach tcpilot's sockets, port, maps and
// programs. What it changes at its own device does not affect the programs at the host's end.
func TestRootPodIsIsolated(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	n := newPodNode(t)
	p := newTcpilot(t, n.world, settings{})
	p.configure(t, settings{keys: fmt.Sprintf("congestion_controls: none\npods: {dir: %s/pods}\n", p.dir), rules: "  - {name: all, learn: {arms: [cubic]}}\n"})
	text, err := os.ReadFile(p.config)
	must(t, err)
	text = bytes.Replace(text, []byte("metrics:\n  listen: \"\"\n"), nil, 1) // the default port, in the node's own network
	must(t, os.WriteFile(p.config, text, 0o644))
	p.start(t)
	p.add(t, n.pod, limits("20M", ""))
	wire := n.star.Wires[0]
	node := &podHost{Host: n.star.Client, addr: wire.To.Addr4.Addr()}
	var open net.Listener
	must(t, node.Do(func() (err error) {
		open, err = net.Listen("tcp", netip.AddrPortFrom(node.addr, 0).String())
		return err
	}))
	defer open.Close()

	before := n.hooks(t, wire.To.Index)
	pins, err := filepath.Glob(filepath.Join(p.dir, "bpf/tcpilot/v*/path_policies"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("pins of the table of paths: %q, %v", pins, err)
	}
	paths, err := ebpf.LoadPinnedMap(pins[0], nil)
	must(t, err)
	defer paths.Close()
	info, err := paths.Info()
	must(t, err)
	a := attacks{Socket: p.socket, ReadSocket: filepath.Join(p.dir, "run/tcpilot-read.sock"), Pin: pins[0],
		Loopback: "127.0.0.1:9732", Node: netip.AddrPortFrom(node.addr, 9732).String(), Open: open.Addr().String(),
		Daemon: p.cmd.Process.Pid, Program: before[0].ID, Device: wire.To.Index, Cgroup: n.cgroup.Path,
		Link: linkOf(t, before[0].ID), TCX: testenv.HasTCX(t)}
	a.Map, _ = info.ID()

	// The same attacks, by the node's root, show that they would succeed.
	const succeeds, fails = "", "an error"
	not, refused, none := unix.EPERM.Error(), unix.ECONNREFUSED.Error(), unix.ENOENT.Error()
	for _, c := range []struct {
		who  string
		with container
		want map[string]string
	}{
		{"the node", container{}, map[string]string{"connect to the port of metrics at the node": refused}},
		{"the pod", container{Root: t.TempDir(), Pod: true, Capabilities: ofPods, Mounts: []mount{{From: n.cgroup.Path, To: "/cgroup", ReadOnly: true}}}, map[string]string{
			"connect to the socket": none, "connect to the socket for reading": none, "open a pin": none,
			"connect to the port of metrics at loopback": refused, "connect to the port of metrics at the node": refused,
			"send the daemon a signal": unix.ESRCH.Error(), "list programs": not, "list maps": not, "open a program": not, "open a map": not, "open a link": not,
			"mount a BPF file system": not, "list programs of the device": "there are none",
		}},
	} {
		from := node.Host
		if c.with.Pod {
			from, a.Device, a.Cgroup = n.pod.Host, wire.From.Index, "/cgroup"
		}
		for what, got := range a.run(t, from, c.with) {
			want := c.want[what]
			if strings.HasPrefix(what, "detach") { // not even root detaches a program that a link attached without that
				want = fails
			}
			if want == succeeds && got != "" || want == fails && got == "" || want != fails && !strings.Contains(got, want) {
				t.Errorf("%s: %s: got %q, want %q", c.who, what, got, want)
			}
		}
	}

	for _, line := range []string{
		"tc qdisc replace dev DEV root pfifo limit 100", "tc qdisc add dev DEV clsact",
		"tc filter add dev DEV egress protocol all u32 match u32 0 0 flowid 1:1", "tc filter add dev DEV ingress protocol all u32 match u32 0 0 flowid 1:1",
		"ip link set DEV down", "ip link set DEV mtu 1400", "ip link set DEV name other", "ip link set other name DEV", "ip link set DEV up", "tc qdisc del dev DEV clsact",
	} {
		args := strings.Fields(strings.ReplaceAll(line, "DEV", wire.From.Device))
		if out, err := n.pod.Run(args[0], args[1:]...); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	if after := n.hooks(t, wire.To.Index); !slices.Equal(before, after) {
		t.Errorf("programs %v, before %v", after, before)
	}
	had := n.list(t, p).Egress.Dropped
	s := uploadUDP(t, n.pod, node, 40e6, 2*time.Second)
	if s.all > 1.1*20e6 || s.all < 0.3*20e6 {
		t.Errorf("%.2f Mbit/s, want 20", s.all/1e6)
	}
	if now := n.list(t, p).Egress; now == nil || now.Dropped == had || !slices.Equal(before, n.hooks(t, wire.To.Index)) {
		t.Errorf("the limit: %+v, %d packets dropped before", now, had)
	}
}
