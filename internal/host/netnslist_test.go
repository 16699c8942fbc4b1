package host

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func newList(t testing.TB) *NetNSList {
	t.Helper()
	testenv.Root(t)
	l, err := NewNetNSList()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// poll returns the entry with a cookie, and whether there is one.
func poll(t testing.TB, l *NetNSList, cookie uint64) (NetNS, bool) {
	t.Helper()
	list, _, err := l.Poll()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(ns NetNS) bool { return ns.Cookie == cookie })
	if i < 0 {
		return NetNS{}, false
	}
	return list[i], true
}

func cookieOf(t testing.TB, path string) uint64 {
	t.Helper()
	cookie, err := netns.Cookie(path)
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

func TestRootNetNSListOwn(t *testing.T) {
	l := newList(t)
	ns, ok := poll(t, l, cookieOf(t, ""))
	if !ok || !ns.Own || ns.Path != netns.Own {
		t.Errorf("own namespace: %+v, %v", ns, ok)
	}
}

func TestRootNetNSListProcess(t *testing.T) {
	l := newList(t)
	n := testenv.NetNS(t)
	cookie := cookieOf(t, n.Path())
	if ns, ok := poll(t, l, cookie); ok {
		t.Fatalf("listed without a process: %+v", ns)
	}
	first := n.Start(t, "sleep", "60")
	second := n.Start(t, "sleep", "60")
	ns, ok := poll(t, l, cookie)
	if !ok || ns.Own || ns.Name != "" || cookieOf(t, ns.Path) != cookie {
		t.Fatalf("with a process: %+v, %v", ns, ok)
	}
	first.Process.Kill()
	first.Wait()
	ns, ok = poll(t, l, cookie)
	if !ok || cookieOf(t, ns.Path) != cookie {
		t.Fatalf("with the other process: %+v, %v", ns, ok)
	}
	second.Process.Kill()
	second.Wait()
	if ns, ok := poll(t, l, cookie); ok {
		t.Errorf("after the last process: %+v", ns)
	}
}

func TestRootNetNSListBindMount(t *testing.T) {
	l := newList(t)
	n := testenv.NetNS(t)
	cookie := cookieOf(t, n.Path())
	n.Start(t, "sleep", "60")
	poll(t, l, cookie)
	point := filepath.Join(t.TempDir(), "blue")
	if err := os.WriteFile(point, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(n.Path(), point, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	ns, ok := poll(t, l, cookie)
	if !ok || ns.Name != "blue" || ns.Path != point {
		t.Errorf("mounted: %+v, %v", ns, ok)
	}
	if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if ns, ok = poll(t, l, cookie); !ok || ns.Name != "" {
		t.Errorf("unmounted: %+v, %v", ns, ok)
	}
}

// A process that changes its namespace just after its fork is found by the next poll,
// although no process came or went in between.
func TestRootNetNSListLateUnshare(t *testing.T) {
	l := newList(t)
	n := testenv.NetNS(t)
	cookie := cookieOf(t, n.Path())
	late := n.Start(t, "sleep", "60")
	own, err := readNetNS(netns.Own)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Poll(); err != nil {
		t.Fatal(err)
	}
	// As if the poll had come between fork and unshare.
	l.procs[late.Process.Pid] = netNSProc{inode: own}
	l.list = slices.DeleteFunc(slices.Clone(l.list), func(ns NetNS) bool { return ns.Cookie == cookie })
	if _, ok := poll(t, l, cookie); !ok {
		t.Error("not found")
	}
}

func TestRootNetNSListUnchanged(t *testing.T) {
	l := newList(t)
	var changed bool
	for range rescanEvery + 2 {
		var err error
		if _, changed, err = l.Poll(); err != nil {
			t.Fatal(err)
		}
	}
	list, _, _ := l.Poll()
	if len(list) == 0 || changed && len(list) == 1 {
		t.Errorf("%d namespaces, changed %v", len(list), changed)
	}
}

// An inode number may be reused for a new namespace between two polls: it must not get
// the cookie of the old one.
func TestNetNSListInodeReused(t *testing.T) {
	l := &NetNSList{
		list:   []NetNS{{Inode: 7, Cookie: 70}, {Inode: 8, Cookie: 80}, {Inode: 9, Cookie: 90}},
		procs:  map[int]netNSProc{100: {inode: 7}, 200: {inode: 8}},
		mounts: map[int]netNSMount{5: {9, "/run/netns/blue"}},
	}
	procs := map[int]netNSProc{101: {inode: 7}, 200: {inode: 8}}
	known := l.knownCookies(map[int]netNSMount{5: {9, "/run/netns/blue"}}, procs)
	if _, ok := known[7]; ok || known[8] != 80 || known[9] != 90 {
		t.Errorf("known cookies: %v", known)
	}
}

// BenchmarkNetNSList measures a poll without changes, and one that reads every process.
func BenchmarkNetNSList(b *testing.B) {
	l := newList(b)
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := l.Poll(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("rescan", func(b *testing.B) {
		for b.Loop() {
			l.polls = 0
			if _, _, err := l.Poll(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(l.procs)), "processes")
	})
}
