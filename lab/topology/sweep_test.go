package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// sweepVictim makes this test binary build a network with everything that a run can
// make, report that it is ready, and wait to be killed.
const sweepVictim = "TCPILOT_TOPOLOGY_VICTIM"

func TestRootSweepRemovesWhatAKilledRunLeft(t *testing.T) {
	testenv.Root(t)
	if os.Getenv(sweepVictim) != "" {
		beVictim(t)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.Command(self, "-test.run", "^"+t.Name()+"$")
	victim.Env = append(os.Environ(), sweepVictim+"=1")
	stdout, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		victim.Process.Kill() // again, if the test ended early
		victim.Wait()
	})
	var id string
	var inside, apart int
	if _, err := fmt.Fscanf(stdout, "ready %s %d %d", &id, &inside, &apart); err != nil {
		t.Fatalf("the run to kill did not start: %v", err)
	}
	name := programName(victim.Process.Pid)
	if got := programs(t, name); got != 2 {
		t.Errorf("the run to kill has %d BPF programs, want 2", got)
	}
	live, err := Sweep()
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(live, func(s string) bool { return strings.Contains(s, id) }); i >= 0 {
		t.Errorf("sweep removed %s of a live run", live[i])
	}
	victim.Process.Kill()
	victim.Wait()
	removed, err := Sweep()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []string{"sender1", "gateway", "receiver1", "receiver2", "load", "files"} {
		if want := prefix + id + "-" + object; !slices.Contains(removed, want) {
			t.Errorf("sweep removed %s, want %s among them", removed, want)
		}
	}
	waitGone(t, inside)
	waitGone(t, apart)
	if left := named(t, id); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
	// The kernel frees programs one grace period after their last reference is gone.
	for range 500 {
		if programs(t, name) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("%d BPF programs are left", programs(t, name))
}

// named finds everything that has the id of a run in its name: namespaces,
// directories, cgroups and mounts.
func named(t *testing.T, id string) (left []string) {
	t.Helper()
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{netns.Dir, runRoot, root} {
		found, _ := filepath.Glob(filepath.Join(dir, "*"+id+"*"))
		left = append(left, found...)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, id) {
			left = append(left, line)
		}
	}
	return left
}

// beVictim never returns. Its processes outlive it, because it does not start them with
// Start, which would make the kernel kill them.
func beVictim(t *testing.T) {
	n, err := New()
	must(t, err)
	l, err := Build(n, Gateway(2))
	must(t, err)
	cg, err := n.Cgroup("load")
	must(t, err)
	must(t, os.Mkdir(filepath.Join(cg.Path, "nested"), 0o755))
	dir, err := n.Dir("files")
	must(t, err)
	bpffs, err := n.BPFFS(dir)
	must(t, err)
	pinPrograms(t, l.Wires[1].To, cg, bpffs)
	for _, command := range []string{
		"tc qdisc add dev access root tbf rate 10mbit burst 16k latency 50ms",
		"iptables-legacy -t raw -A PREROUTING -i access -j ACCEPT",
	} {
		args := strings.Fields(command)
		_, err := l.Senders[0].Run(args[0], args[1:]...)
		must(t, err)
	}
	inside, apart := exec.Command("sleep", "120"), exec.Command("sleep", "120")
	must(t, l.Senders[0].Do(inside.Start))
	cg.Put(apart)
	must(t, apart.Start())
	fmt.Printf("ready %s %d %d\n", n.ID(), inside.Process.Pid, apart.Process.Pid)
	time.Sleep(time.Hour)
}

// programName is the name of the BPF programs of a victim.
func programName(pid int) string { return fmt.Sprintf("lab%d", pid) }

// pinPrograms attaches a program to a device and one to a cgroup, and pins both
// links.
func pinPrograms(t *testing.T, at *End, cg *Cgroup, bpffs string) {
	t.Helper()
	load := func(kind ebpf.ProgramType, attach ebpf.AttachType, verdict int32) *ebpf.Program {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: programName(os.Getpid()), Type: kind, AttachType: attach, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
		})
		must(t, err)
		return p
	}
	var device, group link.Link
	must(t, at.Host.Do(func() (err error) {
		device, err = link.AttachTCX(link.TCXOptions{Interface: at.Index, Attach: ebpf.AttachTCXIngress,
			Program: load(ebpf.SchedCLS, ebpf.AttachTCXIngress, -1)})
		return err
	}))
	must(t, device.Pin(filepath.Join(bpffs, "device")))
	group, err := link.AttachCgroup(link.CgroupOptions{Path: cg.Path, Attach: ebpf.AttachCGroupSockOps,
		Program: load(ebpf.SockOps, ebpf.AttachCGroupSockOps, 1)})
	must(t, err)
	must(t, group.Pin(filepath.Join(bpffs, "group")))
}

// programs counts the loaded BPF programs with this name.
func programs(t *testing.T, name string) (n int) {
	t.Helper()
	for id := ebpf.ProgramID(0); ; {
		var err error
		if id, err = ebpf.ProgramGetNextID(id); errors.Is(err, fs.ErrNotExist) {
			return n
		}
		must(t, err)
		p, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone meanwhile
		}
		must(t, err)
		info, err := p.Info()
		p.Close()
		must(t, err)
		if info.Name == name {
			n++
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitGone waits until the process has ended; a zombie counts as ended.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for range 500 {
		if _, err := startTime(pid); hasEnded(err) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("process %d of the killed run still runs", pid)
	syscall.Kill(pid, syscall.SIGKILL)
}
