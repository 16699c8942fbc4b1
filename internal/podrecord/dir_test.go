package podrecord

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// example is a pod with all fields.
func example() *pod.Pod {
	return &pod.Pod{
		Network: "shop-net", Container: "0123abcd", Interface: "eth0", NetNS: "/run/netns/cni-1", Cookie: 4105,
		Namespace: "shop", Name: "web-1", UID: "f5", Cgroup: "/kubepods/burstable/podf5",
		Annotations: map[string]string{"tcpilot.io/profile": "bulk", "html": "<a>\x01\u2028"},
		Bandwidth:   pod.Bandwidth{Egress: 1 << 60, Ingress: 7},
		Link: pod.Link{Device: pod.Netkit, Index: 2, HostIndex: 1 << 30,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/24"), netip.MustParsePrefix("fd00::5/64")}},
		Added: time.Date(2026, 11, 25, 18, 0, 0, 5, time.UTC),
	}
}

// files lists the directory with hidden files.
func files(t *testing.T, d Dir) []string {
	t.Helper()
	list, err := d.files()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func write(t *testing.T, d Dir, file, content string) {
	t.Helper()
	if err := os.WriteFile(d.path(file), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, d Dir, network, container, iface string) pod.Key {
	t.Helper()
	p := &pod.Pod{Network: network, Container: container, Interface: iface, NetNS: "/run/netns/x", Cookie: 1}
	if err := d.Put(p); err != nil {
		t.Fatal(err)
	}
	return p.Key()
}

func TestPutAndRead(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "a", "pods"))
	if records, refused, err := d.List(); err != nil || records != nil || refused != nil {
		t.Errorf("without a directory: %v, %v, %v", records, refused, err)
	}
	p := example()
	for range 2 { // the second replaces the first
		p.Added = p.Added.Add(time.Hour)
		if err := d.Put(p); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Get(p.Key()); err != nil || !reflect.DeepEqual(&got, p) {
			t.Errorf("read %+v, %v; want %+v", got, err, p)
		}
	}
	if got := files(t, d); !slices.Equal(got, []string{"0123abcd@eth0.json"}) {
		t.Errorf("files %q", got)
	}
	for path, want := range map[string]fs.FileMode{d.path(""): fs.ModeDir | 0o700, d.path("0123abcd@eth0.json"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	for range 2 {
		want := len(files(t, d)) > 0
		if removed, err := d.Delete(p.Key()); err != nil || removed != want {
			t.Errorf("removed %v, %v; want %v", removed, err, want)
		}
	}
	if _, err := d.Get(p.Key()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Delete: %v", err)
	}
	if _, err := Dir(filepath.Join(t.TempDir(), "none")).Delete(p.Key()); err != nil {
		t.Errorf("without a directory: %v", err)
	}
}

// Attachments whose names run together the same way have files of their own.
func TestFilesDiffer(t *testing.T) {
	d := Dir(t.TempDir())
	want := map[pod.Key]bool{}
	for _, k := range []pod.Key{{Container: "a-b", Interface: "c"}, {Container: "a", Interface: "b-c"}, {Container: "a.json", Interface: "b"}, {Container: "a", Interface: "b.json"}, {Container: "a", Interface: "@b"}, {Container: "a", Interface: "b@b"}, {Container: "A", Interface: "b@b"}} {
		want[put(t, d, "n", k.Container, k.Interface)] = true
	}
	records, refused, err := d.List()
	got := map[pod.Key]bool{}
	for _, r := range records {
		got[r.Key()] = true
	}
	if err != nil || refused != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, %v; want %v", got, refused, err, want)
	}
	for file := range slices.Values(files(t, d)) {
		if k, ok := keyOf(file); !ok || fileOf(k) != file {
			t.Errorf("%s is the file of %v", file, k)
		}
	}
}

func TestListRefusesBadFiles(t *testing.T) {
	d := Dir(t.TempDir())
	put(t, d, "n", "good", "eth0")
	put(t, d, "n", "renamed", "eth0")
	if err := os.Rename(d.path("renamed@eth0.json"), d.path("other@eth0.json")); err != nil {
		t.Fatal(err)
	}
	write(t, d, "README", "not ours")
	write(t, d, "cut@eth0.json", `{"container_id": "cut"`)
	write(t, d, "nocookie@eth0.json", `{"container_id": "nocookie", "interface": "eth0"}`)
	write(t, d, "large@eth0.json", strings.Repeat(" ", maxRecord+1))
	write(t, d, "outside@eth0.json", `{"container_id": "../x", "interface": "eth0", "netns": "/run/netns/x", "netns_cookie": 5}`)
	write(t, d, "empty@eth0.json", "")
	write(t, d, ".half@eth0.json.12.tmp", "{")
	if err := unix.Mkfifo(d.path("fifo@eth0.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.path("dir@eth0.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	records, refused, err := d.List()
	if len(records) != 1 || records[0].Container != "good" || records[0].File != "good@eth0.json" || err != nil {
		t.Errorf("%+v, %v", records, err)
	}
	got := make(map[string]string)
	for _, r := range refused {
		got[r.File] = r.Why.Error()
		if !strings.Contains(r.Why.Error(), d.path(r.File)) {
			t.Errorf("%s is not in its error: %v", r.File, r.Why)
		}
	}
	want := map[string]string{
		"README": "not a record", "cut@eth0.json": "not a record", "nocookie@eth0.json": "cookie", "large@eth0.json": "larger than 2 MB",
		"outside@eth0.json": "not a container id", "fifo@eth0.json": "a FIFO", "dir@eth0.json": "a directory", "other@eth0.json": "the record of another pod: container renamed",
	}
	if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
		t.Errorf("refused %q", got)
	}
	for file, why := range want {
		if !strings.Contains(got[file], why) {
			t.Errorf("%s: %q, want %q", file, got[file], why)
		}
	}
	if _, _, err := Dir(d.path("README")).List(); err == nil || !strings.Contains(err.Error(), "list records of pods") {
		t.Errorf("a file in place of the directory: %v", err)
	}
}

// A record that was written again since it was read is not removed.
func TestRemove(t *testing.T) {
	d := Dir(t.TempDir())
	put(t, d, "n", "a", "eth0")
	put(t, d, "n", "b", "eth0")
	put(t, d, "n", "c", "eth0")
	records, _, err := d.List()
	if err != nil || len(records) != 3 {
		t.Fatalf("%+v, %v", records, err)
	}
	put(t, d, "n", "b", "eth0")
	if _, err := d.Delete(records[2].Key()); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "written again meanwhile", ""} {
		if err := d.Remove(&records[i]); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", records[i].File, err, want)
		}
	}
	if got := files(t, d); !slices.Equal(got, []string{"b@eth0.json"}) {
		t.Errorf("left %q", got)
	}
}

func TestPutRefuses(t *testing.T) {
	parent := t.TempDir()
	d := Dir(filepath.Join(parent, "pods"))
	for _, c := range []struct {
		change func(*pod.Pod)
		want   string
	}{
		{func(p *pod.Pod) { p.Container = "" }, "is empty"},
		{func(p *pod.Pod) { p.Container = "../../etc/x" }, "not a container id"},
		{func(p *pod.Pod) { p.Container = ".hidden" }, "not a container id"},
		{func(p *pod.Pod) { p.Container = "a@b" }, "not a container id"},
		{func(p *pod.Pod) { p.Container = "a\x00" }, "not a container id"},
		{func(p *pod.Pod) { p.Container = strings.Repeat("a", 201) }, "201 bytes"},
		{func(p *pod.Pod) { p.Interface = "" }, "is empty"},
		{func(p *pod.Pod) { p.Interface = "a/b" }, "not an interface name"},
		{func(p *pod.Pod) { p.Interface = ".." }, "not an interface name"},
		{func(p *pod.Pod) { p.Interface = "a\xff" }, "not an interface name"},
		{func(p *pod.Pod) { p.Interface = "a\x01" }, "not an interface name"},
		{func(p *pod.Pod) { p.Interface = "sixteen-bytes-xx" }, "16 bytes"},
		{func(p *pod.Pod) { p.Cookie = 0 }, "cookie"},
		{func(p *pod.Pod) { p.Annotations = map[string]string{"a": strings.Repeat("x", maxRecord)} }, "annotations"},
	} {
		p := example()
		c.change(p)
		if err := d.Put(p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q %q: %v, want %q", p.Container, p.Interface, err, c.want)
		}
		if _, err := d.Delete(p.Key()); p.Check() != nil && p.Cookie != 0 && err == nil {
			t.Errorf("%q %q: deleted", p.Container, p.Interface)
		}
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	long := example()
	long.Container, long.Interface = strings.Repeat("a", 200), strings.Repeat("b", 15) // as long as possible
	if err := d.Put(long); err != nil {
		t.Error(err)
	}
	long.Annotations = map[string]string{"a": strings.Repeat("\x01", 256<<10)} // the worst that Kubernetes allows
	if err := d.Put(long); err != nil {
		t.Error(err)
	}
}

// The errors of a directory full of other files are bounded.
func TestKeepBoundsErrors(t *testing.T) {
	d := Dir(t.TempDir())
	for i := range 100 {
		write(t, d, fmt.Sprint("x", i), "{}")
	}
	if _, err := d.Keep("n", nil); err == nil || len(err.Error()) > 2000 || !strings.Contains(err.Error(), "92 files more") {
		t.Errorf("the error has %d bytes: %.2000v", len(fmt.Sprint(err)), err)
	}
}

// Keep is for one network, keeps what is valid, removes what killed processes left, and goes on
// after errors.
func TestKeep(t *testing.T) {
	d := Dir(t.TempDir())
	valid := put(t, d, "a", "valid", "eth0")
	put(t, d, "a", "valid", "net1")
	put(t, d, "a", "gone", "eth0")
	other := put(t, d, "b", "gone", "net1")
	write(t, d, "bad@eth0.json", "{")
	write(t, d, ".gone@eth0.json.77.tmp", "{")
	write(t, d, ".keep", "somebody's")
	removed, err := d.Keep("a", []pod.Key{valid, {Container: "never", Interface: "seen"}, {Container: "../x", Interface: ""}})
	if removed != 2 || err == nil || !strings.Contains(err.Error(), "bad@eth0.json") {
		t.Errorf("removed %d, %v", removed, err)
	}
	if got, want := files(t, d), []string{".keep", "bad@eth0.json", fileOf(other), fileOf(valid)}; !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
	if removed, err := Dir(filepath.Join(t.TempDir(), "none")).Keep("a", nil); removed != 0 || err != nil {
		t.Errorf("without a directory: %d, %v", removed, err)
	}
}

// Delete removes what a process left that was killed while it wrote the record.
func TestDeleteRemovesTemporaries(t *testing.T) {
	d := Dir(t.TempDir())
	write(t, d, ".a@eth0.json.1.tmp", "{")
	write(t, d, ".a@eth0.json.2.tmp", "")
	write(t, d, ".b@eth0.json.1.tmp", "{")
	if removed, err := d.Delete(pod.Key{Container: "a", Interface: "eth0"}); removed || err != nil {
		t.Errorf("removed %v, %v", removed, err)
	}
	if got := files(t, d); !slices.Equal(got, []string{".b@eth0.json.1.tmp"}) {
		t.Errorf("left %q", got)
	}
}

func TestWritable(t *testing.T) {
	parent := t.TempDir()
	d := Dir(filepath.Join(parent, "pods"))
	if err := d.Writable(); err != nil {
		t.Error(err)
	}
	if got := files(t, d); len(got) != 0 {
		t.Errorf("left %q", got)
	}
	file := filepath.Join(parent, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, d := range []Dir{Dir(file), Dir(filepath.Join(file, "pods")), "/proc/none"} {
		if err := d.Writable(); err == nil || !strings.Contains(err.Error(), "write into directory of pods") {
			t.Errorf("%s: %v", d, err)
		}
		if err := d.Put(example()); err == nil {
			t.Errorf("%s: a record was written", d)
		}
	}
}

// Processes that write, delete, list and collect at the same time lose no record of each other:
// at the end, the directory has exactly what each attachment's last operation left, and no reader
// ever sees a damaged record.
func TestConcurrent(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "pods"))
	const writers, steps = 8, 150
	shared := pod.Key{Container: "shared", Interface: "eth0"} // all write it: whole, but of no order
	kept := put(t, d, "kept", "kept", "eth0")
	last := make([]map[pod.Key]uint64, writers)
	var workers, readers sync.WaitGroup
	stop := make(chan struct{})
	for w := range writers {
		last[w] = make(map[pod.Key]uint64)
		workers.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for step := range steps {
				k := pod.Key{Container: fmt.Sprint("c", w, "-", r.IntN(5)), Interface: "eth0"}
				if r.IntN(4) == 0 {
					k = shared
				}
				if r.IntN(3) == 0 {
					if _, err := d.Delete(k); err != nil {
						t.Error(err)
					}
					delete(last[w], k)
					continue
				}
				cookie := uint64(w*steps + step + 1)
				// The size differs, so that a record that is written over shows.
				p := &pod.Pod{Network: "n", Container: k.Container, Interface: k.Interface, NetNS: "/run/netns/x", Cookie: cookie, Annotations: map[string]string{
					"a": strings.Repeat(fmt.Sprint(cookie, " "), r.IntN(2000))}}
				if err := d.Put(p); err != nil {
					t.Error(err)
				}
				last[w][k] = cookie
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				records, refused, err := d.List()
				if err != nil || refused != nil {
					t.Errorf("a reader sees a damaged record: %v, %v", refused, err)
				}
				for _, p := range records {
					if a := p.Annotations["a"]; strings.ReplaceAll(a, fmt.Sprint(p.Cookie, " "), "") != "" {
						t.Errorf("a record of two processes: cookie %d", p.Cookie)
					}
				}
				// Finds temporary files that are in use, and leaves them.
				if _, err := d.Keep("none", nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	close(stop)
	readers.Wait()

	want := map[pod.Key]uint64{kept: 1}
	for _, m := range last {
		maps.Copy(want, m)
	}
	delete(want, shared)
	got := make(map[pod.Key]uint64)
	records, refused, err := d.List()
	if err != nil || refused != nil {
		t.Error(refused, err)
	}
	for _, r := range records {
		got[r.Key()] = r.Cookie
	}
	delete(got, shared)
	if !maps.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	if _, err := d.Keep("n", nil); err != nil {
		t.Error(err)
	}
	if got := files(t, d); !slices.Equal(got, []string{fileOf(kept)}) {
		t.Errorf("after Keep: %q", got)
	}
}

// What killed STATUS commands have left is removed by the next one: no DEL is about it, and not all runtimes execute GC.
func TestWritableRemovesWhatKilledOnesLeft(t *testing.T) {
	d := Dir(t.TempDir())
	for _, file := range []string{".status.1.tmp", ".status.2.tmp", ".c@eth0.json.3.tmp"} {
		write(t, d, file, "")
	}
	if err := d.Writable(); err != nil {
		t.Fatal(err)
	}
	if got := files(t, d); !slices.Equal(got, []string{".c@eth0.json.3.tmp"}) {
		t.Errorf("left %q", got)
	}
}

// A record that cannot be read because there are too many open files is not a wrong one: its pod is not gone.
func TestListWithoutDescriptors(t *testing.T) {
	d := Dir(t.TempDir())
	put(t, d, "n", "c", "eth0")
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	free, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(free)
	few := unix.Rlimit{Cur: uint64(free) + 1, Max: before.Max} // enough to list, too few to read
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	_, refused, err := d.List()
	if back := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); back != nil {
		t.Fatal(back)
	}
	if !errors.Is(err, unix.EMFILE) || refused != nil {
		t.Errorf("refused %v, error %v", refused, err)
	}
}
