package netns_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestPath(t *testing.T) {
	for name, want := range map[string]string{
		"":             "/proc/thread-self/ns/net",
		"blue":         "/run/netns/blue",
		"/proc/1/ns/n": "/proc/1/ns/n",
	} {
		if got := netns.Path(name); got != want {
			t.Errorf("netns.Path(%q) is %q, want %q", name, got, want)
		}
	}
}

func TestRootCookie(t *testing.T) {
	n := testenv.NetNS(t)
	own, err := netns.Cookie("")
	if err != nil {
		t.Fatal(err)
	}
	first, err := netns.Cookie(n.Path())
	if err != nil {
		t.Fatal(err)
	}
	again, err := netns.Cookie(n.Path())
	if err != nil || first != again || first == own || first == 0 {
		t.Errorf("cookies: own %d, other %d and then %d, %v", own, first, again, err)
	}
}

func TestRootIn(t *testing.T) {
	n := testenv.NetNS(t)
	var want string
	n.Do(t, func() { want, _ = os.Readlink(netns.Own) })
	before, _ := os.Readlink(netns.Own)
	failed := errors.New("f failed")
	for range 50 {
		var inside string
		err := netns.In(n.Path(), func() error {
			inside, _ = os.Readlink(netns.Own)
			return failed
		})
		if inside != want || !errors.Is(err, failed) {
			t.Fatalf("inside is %s, want %s; error %v", inside, want, err)
		}
	}
	if after, _ := os.Readlink(netns.Own); after != before {
		t.Errorf("after is %s, before %s", after, before)
	}
	// No thread may remain in the namespace; one that is about to end may still be there.
	var left []string
	for range 100 {
		if left = threadsIn(want); left == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("still in the namespace: %v", left)
}

// threadsIn are the threads of this process in a network namespace.
func threadsIn(namespace string) (threads []string) {
	tasks, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, task := range tasks {
		if got, _ := os.Readlink(task); got == namespace {
			threads = append(threads, task)
		}
	}
	return threads
}

func TestRootInErrors(t *testing.T) {
	testenv.Root(t)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := func() error { t.Error("f was called"); return nil }
	if err := netns.In("no-such-namespace", f); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such name: %v", err)
	}
	if err := netns.In(empty, f); err == nil || !strings.Contains(err.Error(), "not a namespace") {
		t.Errorf("an empty file: %v", err)
	}
	if err := netns.InSame(empty, 1, f); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name whose namespace was unmounted: %v", err)
	}
	if err := netns.In("/proc/self/ns/mnt", f); err == nil {
		t.Error("a mount namespace was entered")
	}
}
