package topology

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"golang.org/x/sys/unix"
)

// newNet makes a network that must close without error.
func newNet(t *testing.T) *Net {
	t.Helper()
	testenv.Root(t)
	n, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return n
}

func newStar(t *testing.T, remotes ...string) *Star {
	t.Helper()
	s, err := NewStar(newNet(t), remotes...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRootStarReachesEveryRemote(t *testing.T) {
	s := newStar(t, "far", "near")
	for _, r := range s.Remotes {
		for _, addr := range []netip.Addr{r.Addr4, r.Addr6} {
			t.Run(fmt.Sprintf("%s/%s", r.Name, addr), func(t *testing.T) {
				from := echoOnce(t, r.Host, s.Client, netip.AddrPortFrom(addr, 7))
				if want := []netip.Addr{s.Access.Addr4.Addr(), s.Access.Addr6.Addr()}; from != want[0] && from != want[1] {
					t.Errorf("server saw %s, want one of %s", from, want)
				}
			})
		}
	}
}

// echoOnce connects from one host to another and returns the address that the
// server saw.
func echoOnce(t *testing.T, server, client *Host, at netip.AddrPort) netip.Addr {
	t.Helper()
	var l net.Listener
	port := fmt.Sprintf(":%d", at.Port()) // on any address: those of a spread host are not bound one by one
	if err := server.Do(func() (err error) { l, err = net.Listen("tcp", port); return }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var c net.Conn
	err := client.Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: 2 * time.Second}).Dial("tcp", at.String())
		return
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return netip.MustParseAddrPort(s.RemoteAddr().String()).Addr().Unmap()
}

func TestRootCloseLeavesNothing(t *testing.T) {
	testenv.Root(t)
	n, err := New()
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewStar(n, "far")
	if err != nil {
		t.Fatal(err)
	}
	cg, err := n.Cgroup("load")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := n.Dir("files")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.BPFFS(dir); err != nil {
		t.Fatal(err)
	}
	// One process that the network knows, and two that it does not: one in the
	// namespace, one in the cgroup.
	cmd := exec.Command("sh", "-c", "sleep 60 & echo $!; sleep 60")
	in, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Start(cmd); err != nil {
		t.Fatal(err)
	}
	var grandchild int
	if _, err := fmt.Fscan(in, &grandchild); err != nil {
		t.Fatal(err)
	}
	apart := exec.Command("sleep", "60")
	cg.Put(apart)
	if err := apart.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- apart.Wait(); ended <- cmd.Wait() }()
	if err := n.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	<-ended
	<-ended
	waitGone(t, grandchild)
	for _, pattern := range []string{"/run/netns/" + n.id.name("*"), filepath.Dir(cg.Path) + "/" + n.id.name("*"), runRoot + "/" + n.id.name("*")} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left behind: %s", left)
		}
	}
	if err := n.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestRootProcessRunsInNamespaceAndCgroup(t *testing.T) {
	n := newNet(t)
	h, err := n.Host("alone")
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.Run("ip", "-o", "link")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, "eth0") || !strings.Contains(out, "lo:") {
		t.Errorf("links of a new host are\n%s", out)
	}
	cg, err := n.Cgroup("load")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat", "/proc/self/cgroup")
	cg.Put(cmd)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	var own string
	for in := bufio.NewScanner(stdout); in.Scan(); {
		if path, ok := strings.CutPrefix(in.Text(), "0::"); ok {
			own = path
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if filepath.Base(own) != filepath.Base(cg.Path) {
		t.Errorf("process ran in cgroup %s, want %s", own, cg.Path)
	}
}

func TestRootClosedNetRefusesAdditions(t *testing.T) {
	n := newNet(t)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Host("late"); !errors.Is(err, errClosed) {
		t.Errorf("add a host: %v", err)
	}
	if _, err := n.Cgroup("late"); !errors.Is(err, errClosed) {
		t.Errorf("add a cgroup: %v", err)
	}
	if _, err := n.Dir("late"); !errors.Is(err, errClosed) {
		t.Errorf("make a directory: %v", err)
	}
	if left := named(t, n.ID()); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
	// A process that is started while Close runs.
	n = newNet(t)
	h, err := n.Host("alone")
	if err != nil {
		t.Fatal(err)
	}
	n.closed = true
	cmd := exec.Command("sleep", "60")
	if err := h.Start(cmd); !errors.Is(err, errClosed) {
		t.Errorf("start a process: %v", err)
	}
	if cmd.ProcessState == nil {
		t.Error("the process still runs")
	}
	n.closed = false
}

func TestRootHostsAreAddedAtTheSameTime(t *testing.T) {
	n := newNet(t)
	var added atomic.Int32
	var adding sync.WaitGroup
	for i := range 12 {
		adding.Go(func() {
			if _, err := n.Host(fmt.Sprint("h", i%4)); err == nil {
				added.Add(1)
			}
		})
	}
	adding.Wait()
	if added.Load() != 4 {
		t.Errorf("%d of 4 hosts were added, each tried three times", added.Load())
	}
}

// otherCongestion returns congestion controls other than the machine's default. First
// are those that are not in the machine's allowed list, which only the machine's own
// namespace may have as its default.
func otherCongestion(t *testing.T) []string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "htcp") // loads its module, if there is one
	unix.Close(fd)
	read := func(key string) []string {
		b, err := os.ReadFile(sysctl.Path(key))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(b))
	}
	allowed := read(allowedKey)
	var restricted, free []string
	for _, cc := range read("net.ipv4.tcp_available_congestion_control") {
		switch {
		case slices.Contains(read(kernelcc.DefaultKey), cc):
		case slices.Contains(allowed, cc):
			free = append(free, cc)
		default:
			restricted = append(restricted, cc)
		}
	}
	return append(restricted, free...)
}

func TestRootSysctlIsOfTheHostOnly(t *testing.T) {
	before, err := os.ReadFile(sysctl.Path(kernelcc.DefaultKey))
	if err != nil {
		t.Fatal(err)
	}
	n := newNet(t)
	h, err := n.Host("alone")
	if err != nil {
		t.Fatal(err)
	}
	const key = "net.ipv4.ip_default_ttl"
	if err := h.SetSysctl(key, "77"); err != nil {
		t.Fatal(err)
	}
	if got, err := h.Sysctl(key); err != nil || got != "77" {
		t.Errorf("Sysctl = %q, %v, want 77", got, err)
	}
	if ttl, _ := os.ReadFile(sysctl.Path(key)); strings.TrimSpace(string(ttl)) == "77" {
		t.Error("the caller's namespace has 77 too")
	}
	if err := h.SetCongestion(otherCongestion(t)[0]); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(sysctl.Path(kernelcc.DefaultKey)); string(after) != string(before) {
		t.Errorf("the caller's %s went from %s to %s", kernelcc.DefaultKey, before, after)
	}
	if cookie, err := netns.Cookie(h.Path()); err != nil || cookie == 0 {
		t.Errorf("Cookie = %d, %v", cookie, err)
	}
}

func TestRootSweepRestoresTheMachinesCongestion(t *testing.T) {
	testenv.Root(t)
	lock, err := lockAllowed(os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(sysctl.Path(allowedKey))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.WriteAt(before, 0); err != nil {
		t.Fatal(err)
	}
	changed := "reno" // built into every kernel
	if strings.TrimSpace(string(before)) == changed {
		changed += " " + otherCongestion(t)[0]
	}
	if err := os.WriteFile(sysctl.Path(allowedKey), []byte(changed), 0); err != nil {
		t.Fatal(err)
	}
	lock.Close() // as if its owner was killed
	if _, err := Sweep(); err != nil {
		t.Error(err)
	}
	// Not with lockAllowed, which would itself restore the list.
	if lock, err = os.Open(allowedLock); err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(sysctl.Path(allowedKey)); string(after) != string(before) {
		t.Errorf("the machine allowed %q, now %q", before, after)
	}
	if kept, _ := os.ReadFile(allowedLock); len(kept) > 0 {
		t.Errorf("%s still holds %q", allowedLock, kept)
	}
}

func TestRootSetCongestionRestoresTheMachine(t *testing.T) {
	n := newNet(t)
	h, err := n.Host("alone")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(sysctl.Path(allowedKey))
	if err != nil {
		t.Fatal(err)
	}
	for _, cc := range otherCongestion(t) {
		if got, err := h.Sysctl(kernelcc.DefaultKey); err != nil || got == cc {
			t.Fatalf("default is %q, %v: setting %s changes nothing", got, err, cc)
		}
		if err := h.SetCongestion(cc); err != nil {
			t.Fatal(err)
		}
		if got, err := h.Sysctl(kernelcc.DefaultKey); err != nil || got != cc {
			t.Errorf("default is %q, %v, want %s", got, err, cc)
		}
	}
	if after, _ := os.ReadFile(sysctl.Path(allowedKey)); string(after) != string(before) {
		t.Errorf("the machine allowed %q, now %q", before, after)
	}
	if err := h.SetCongestion("no-such-cc"); err == nil {
		t.Error("an unknown congestion control was set")
	}
}
