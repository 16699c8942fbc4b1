package cnigc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// runtime is a container runtime on a node of its own, whose pods tcpilot-cni makes, with addresses of host-local.
type runtime struct {
	*libcni.CNIConfig
	node   Node
	host   *testenv.NS
	list   *libcni.NetworkConfigList
	leases string
	log    bytes.Buffer
}

func newRuntime(t *testing.T) *runtime {
	t.Helper()
	r := &runtime{host: testenv.NetNS(t)}
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	build := exec.Command("go", "build", "-o", filepath.Join(bin, "tcpilot-cni"), "github.com/tcpilot/tcpilot/cmd/tcpilot-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build tcpilot-cni: %v\n%s", err, out)
	}
	for _, tool := range []string{"host-local", "portmap"} {
		out, err := exec.Command("go", "tool", "-n", tool).Output() // builds it, and prints its path; of the CNI project
		if err == nil {
			err = os.Symlink(strings.TrimSpace(string(out)), filepath.Join(bin, tool))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r.host.Enter(t)
	// With other devices, as hosts have them: if both ends of a pair had the same index, Linux 6.1 would take them up only later.
	r.host.IP(t, "link add wire0 type veth peer name wire1\naddress add 192.0.2.1/32 dev lo")
	r.node = Node{ConfDir: filepath.Join(dir, "net.d"), BinDir: bin, CacheDir: filepath.Join(dir, "cache"), Records: podrecord.Dir(filepath.Join(dir, "pods")), Stderr: &r.log}
	r.leases = filepath.Join(dir, "leases")
	r.configure(t, `"ipMasq": true, "ipam": {"type": "host-local", "dataDir": "LEASES", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd88::/64"}]]}`)
	r.CNIConfig = libcni.NewCNIConfigWithCacheDir([]string{bin}, r.node.CacheDir, &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: &r.log}})
	return r
}

// configure writes the network configuration, whose entry of tcpilot-cni has these keys.
func (r *runtime) configure(t *testing.T, keys string) {
	t.Helper()
	text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "tcpilot-cni", "device": "veth", "mtu": 1500, "dir": %q, "socket": "/none.sock", %s},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`, string(r.node.Records), strings.ReplaceAll(keys, "LEASES", r.leases))
	if err := errors.Join(os.MkdirAll(r.node.ConfDir, 0o755), os.WriteFile(filepath.Join(r.node.ConfDir, "10-net.conflist"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r.list = list
}

// namespace makes a network namespace with a name, as runtimes do, and returns its path.
func namespace(t *testing.T, name string) string {
	t.Helper()
	name = fmt.Sprintf("tcpilot-gc-%d-%s", os.Getpid(), name)
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("add namespace: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() }) // it may be gone
	return filepath.Join("/run/netns", name)
}

// crash ends a network namespace without DEL.
func crash(t *testing.T, path string) {
	t.Helper()
	if out, err := exec.Command("ip", "netns", "del", filepath.Base(path)).CombinedOutput(); err != nil {
		t.Fatalf("delete namespace: %v: %s", err, out)
	}
}

// add adds a pod in a new network namespace, and returns its path.
func (r *runtime) add(t *testing.T, container string) string {
	t.Helper()
	path := namespace(t, container)
	rt := &libcni.RuntimeConf{ContainerID: container, NetNS: path, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web-" + container}}}
	if _, err := r.AddNetworkList(t.Context(), r.list, rt); err != nil {
		t.Fatalf("%v\n%s", err, &r.log)
	}
	return path
}

func (r *runtime) collect(t *testing.T) Report {
	t.Helper()
	report, err := r.node.Collect(t.Context(), func(Attachment) {})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// left is what pods have left: devices, routes, elements of nftables by their devices, addresses, records, and results.
func (r *runtime) left(t *testing.T) (names []string) {
	t.Helper()
	for _, args := range []string{"-br link", "-4 route", "-6 route show proto static"} {
		for line := range strings.Lines(r.host.Run(t, "ip", strings.Fields(args)...)) {
			names = append(names, strings.Join(strings.Fields(line), " "))
		}
	}
	for _, pattern := range []string{r.leases + "/net/*", string(r.node.Records) + "/*", r.node.CacheDir + "/results/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			name := filepath.Base(f)
			if _, err := netip.ParseAddr(name); err == nil || filepath.Base(filepath.Dir(f)) != "net" { // host-local keeps files of its own there
				names = append(names, name)
			}
		}
	}
	return names
}

// eventuallyLeft waits for the kernel, which ends namespaces in the background.
func (r *runtime) eventuallyLeft(t *testing.T, what string, want []string) {
	t.Helper()
	var got []string
	for range 100 {
		if got = r.left(t); slices.Equal(got, want) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("%s: left\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
}

func containers(list []Attachment) (names []string) {
	for _, a := range list {
		names = append(names, a.Container)
	}
	slices.Sort(names)
	return names
}

// What pods have left whose namespaces ended without DEL is removed as DEL would have done, with their addresses, and nothing of the
// pod that runs.
func TestRootCollect(t *testing.T) {
	r := newRuntime(t)
	nothing := r.left(t)
	stays := r.add(t, "stays")
	withOne := r.left(t)

	crashed := r.add(t, "crashed")
	uncached := r.add(t, "uncached") // a runtime whose library keeps no results: the configuration is that of the node
	if err := os.Remove(filepath.Join(r.node.CacheDir, "results", "net-uncached-eth0")); err != nil {
		t.Fatal(err)
	}
	reused := r.add(t, "reused") // another namespace has its path
	for _, path := range []string{crashed, uncached, reused} {
		crash(t, path)
	}
	namespace(t, "reused")
	r.waitForDevices(t, 1)

	withAll := r.left(t)
	r.node.DryRun = true
	if got := r.collect(t); got.Kept != 1 || !slices.Equal(containers(got.Gone), []string{"crashed", "reused", "uncached"}) || got.Gone[0].Removed {
		t.Errorf("dry run: %+v", got)
	}
	r.eventuallyLeft(t, "dry run", withAll)
	r.node.DryRun = false
	r.node.OlderThan = time.Hour
	if got := r.collect(t); len(got.Gone) != 0 || !slices.Equal(containers(got.Unclear), []string{"crashed", "reused", "uncached"}) || !strings.Contains(got.Unclear[0].Why, "was added only") {
		t.Errorf("young ones: %+v", got)
	}
	r.node.OlderThan = 0

	var told []string
	got, err := r.node.Collect(t.Context(), func(a Attachment) { told = append(told, a.Container) })
	if err != nil || got.Kept != 1 || len(got.Gone) != 3 || len(got.Unclear) != 0 || len(got.Leases) != 0 || len(told) != 3 {
		t.Fatalf("%+v, told %q, %v\n%s", got, told, err, &r.log)
	}
	for _, a := range got.Gone {
		if !a.Removed || a.Error != "" || a.Pod != "shop/web-"+a.Container || len(a.Addresses) != 2 || a.Why == "" {
			t.Errorf("%+v", a)
		}
	}
	r.eventuallyLeft(t, "after it", withOne)
	t.Run("the pod that runs", func(t *testing.T) { // a subtest, because it keeps the namespace open
		r.host.Speak(t, testenv.OpenNetNS(t, stays), ":80", "10.88.0.2:80", 5*time.Second)
	})
	if got := r.collect(t); len(got.Gone) != 0 || got.Kept != 1 {
		t.Errorf("again: %+v", got)
	}
	crash(t, stays)
	r.waitForDevices(t, 0)
	if got := r.collect(t); len(got.Gone) != 1 || !got.Gone[0].Removed {
		t.Errorf("the last one: %+v", got)
	}
	r.eventuallyLeft(t, "after the last one", nothing)
}

// waitForDevices waits until only n pods have devices on the host.
func (r *runtime) waitForDevices(t *testing.T, n int) {
	t.Helper()
	for range 200 {
		if strings.Count(r.host.Run(t, "ip", "-br", "link"), "tcp") == n {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("more than %d pods have devices: %s", n, r.host.Run(t, "ip", "-br", "link"))
}

// A pod is kept if anything shows that its namespace exists, or if that cannot be found out.
func TestRootKeepsWhatMayExist(t *testing.T) {
	r := newRuntime(t)
	// The path is gone, but a process is in the namespace.
	process := r.add(t, "process")
	sleeper := exec.Command("ip", "netns", "exec", filepath.Base(process), "sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleeper.Wait()
	defer sleeper.Process.Kill()
	for range 200 {
		if a, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", sleeper.Process.Pid)); a != "" {
			if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", sleeper.Process.Pid)); string(name) == "sleep\n" {
				break
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	crash(t, process)
	// The path is gone, and only a descriptor keeps the namespace alive: its pair shows it.
	descriptor := r.add(t, "descriptor")
	file, err := os.Open(descriptor)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	crash(t, descriptor)
	// The path is an empty file, as it is without the mounts of the runtime.
	unmounted := r.add(t, "unmounted")
	if out, err := exec.Command("umount", unmounted).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// The directory of the path is not there.
	p, err := r.node.Records.Get(pod.Key{Container: "unmounted", Interface: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	p.Container, p.NetNS = "elsewhere", "/nowhere/netns/x"
	if err := r.node.Records.Put(&p); err != nil {
		t.Fatal(err)
	}
	r.waitForDevices(t, 2) // that of the unmounted one ends
	before := r.left(t)
	got := r.collect(t)
	want := map[string]string{"process": "but the namespace exists: /proc/", "descriptor": "host's end of its pair exists: tcp", "unmounted": "is not a namespace", "elsewhere": "does not exist here"}
	for _, a := range got.Unclear {
		if !strings.Contains(a.Why, want[a.Container]) {
			t.Errorf("%s: %q, want %q", a.Container, a.Why, want[a.Container])
		}
	}
	if len(got.Unclear) != len(want) || len(got.Gone) != 0 || got.Kept != 0 {
		t.Errorf("%+v", got)
	}
	r.eventuallyLeft(t, "after it", before)
}

// After a restart of the host, the cookie of a record, and the index of its device, may be those of another pod.
func TestRootNumbersOfAnotherPod(t *testing.T) {
	r := newRuntime(t)
	r.add(t, "new")
	old := r.add(t, "old")
	crash(t, old)
	r.waitForDevices(t, 1)
	p, err := r.node.Records.Get(pod.Key{Container: "old", Interface: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := r.node.Records.Get(pod.Key{Container: "new", Interface: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	p.Cookie, p.Link.HostIndex = other.Cookie, other.HostIndex
	if err := r.node.Records.Put(&p); err != nil {
		t.Fatal(err)
	}
	if got := r.collect(t); len(got.Gone) != 1 || !got.Gone[0].Removed || got.Gone[0].Container != "old" || got.Kept != 1 {
		t.Errorf("%+v", got)
	}
}

// An attachment that was added again after it was judged is not removed.
func TestRootAddedAgain(t *testing.T) {
	r := newRuntime(t)
	crash(t, r.add(t, "a"))
	r.waitForDevices(t, 0)
	p, err := r.node.Records.Get(pod.Key{Container: "a", Interface: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	c := &collection{Node: r.node, library: r.CNIConfig}
	a := &attachment{Pod: p, runtime: &libcni.RuntimeConf{ContainerID: "a", IfName: "eth0"}}
	p.Added = p.Added.Add(time.Second)
	if err := r.node.Records.Put(&p); err != nil {
		t.Fatal(err)
	}
	before := r.left(t)
	if err := c.del(t.Context(), a); err == nil || !strings.Contains(err.Error(), "added again") {
		t.Error(err)
	}
	r.eventuallyLeft(t, "after it", before)
}

// Without the configuration by which the address was given, nothing is removed.
func TestRootNeedsTheConfiguration(t *testing.T) {
	r := newRuntime(t)
	crash(t, r.add(t, "a"))
	r.waitForDevices(t, 0)
	if err := os.RemoveAll(r.node.CacheDir); err != nil {
		t.Fatal(err)
	}
	before := r.left(t)
	for keys, want := range map[string]string{
		`"mtu": 1400`:                     "has no ipam for tcpilot-cni",
		`"ipam": {"type": "host-remote"}`: `failed to find plugin "host-remote"`,
	} {
		r.configure(t, keys)
		if got := r.collect(t); len(got.Gone) != 1 || got.Gone[0].Removed || !strings.Contains(got.Gone[0].Error, want) {
			t.Errorf("%s: %+v, want %q", keys, got, want)
		}
		r.eventuallyLeft(t, keys, before)
	}
	if err := os.Remove(filepath.Join(r.node.ConfDir, "10-net.conflist")); err != nil {
		t.Fatal(err)
	}
	if got := r.collect(t); len(got.Gone) != 1 || !strings.Contains(got.Gone[0].Error, "find the configuration of network net") {
		t.Errorf("%+v", got)
	}
}

// A chained plugin's record is removed by the daemon. The cache of the runtime has what DEL needs.
func TestRootChained(t *testing.T) {
	r := newRuntime(t)
	crash(t, r.add(t, "a"))
	r.waitForDevices(t, 0)
	if _, err := r.node.Records.Delete(pod.Key{Container: "a", Interface: "eth0"}); err != nil {
		t.Fatal(err)
	}
	r.add(t, "b")
	if _, err := r.node.Records.Delete(pod.Key{Container: "b", Interface: "eth0"}); err != nil {
		t.Fatal(err)
	}
	got := r.collect(t)
	if len(got.Gone) != 1 || !got.Gone[0].Removed || got.Gone[0].Pod != "shop/web-a" || len(got.Gone[0].Addresses) != 2 || got.Kept != 1 {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(r.leases, "net", "10.88.0.2")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the address of a: %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.leases, "net", "10.88.0.3")); err != nil {
		t.Errorf("the address of b: %v", err)
	}
}

// Addresses of which nothing is known are listed, and stay.
func TestRootUnknownLeases(t *testing.T) {
	r := newRuntime(t)
	r.add(t, "a")
	forget := func(container string) {
		_, err := r.node.Records.Delete(pod.Key{Container: container, Interface: "eth0"})
		if err := errors.Join(err, os.Remove(filepath.Join(r.node.CacheDir, "results", "net-"+container+"-eth0"))); err != nil {
			t.Fatal(err)
		}
	}
	r.add(t, "runs")
	forget("runs")
	crash(t, r.add(t, "lost"))
	r.waitForDevices(t, 2)
	forget("lost")
	r.node.OlderThan = time.Hour
	if got := r.collect(t); len(got.Leases) != 0 {
		t.Errorf("young ones: %+v", got)
	}
	r.node.OlderThan = 0
	got := r.collect(t)
	var addresses []string
	for _, l := range got.Leases {
		addresses = append(addresses, l.Address)
		if _, err := os.Stat(l.File); err != nil || l.Container != "lost" || l.Network != "net" {
			t.Errorf("%+v, %v", l, err)
		}
	}
	if !slices.Equal(addresses, []string{"10.88.0.4", "fd88::4"}) || got.Kept != 1 || len(got.Gone) != 0 {
		t.Errorf("%+v", got)
	}
}
