package cniconf

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
)

func expectNoRemoval(t *testing.T, n Node) {
	t.Helper()
	if r, err := podrecord.Dir(n.Records).Removal(); err != nil || r != nil {
		t.Errorf("a removal is left: %+v, %v", r, err)
	}
	if left, err := os.ReadDir(n.Records); err != nil && !errors.Is(err, fs.ErrNotExist) || slices.ContainsFunc(left, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") }) {
		t.Errorf("left %v, %v", left, err)
	}
}

// running is a node with the main plugin and one pod of it, and where host-local has its address.
func running(t *testing.T) (n Node, program string, pods podrecord.Dir, key pod.Key) {
	t.Helper()
	n, program = mainNode(t, nil)
	n.Leases = filepath.Join(t.TempDir(), "networks")
	if _, _, err := n.InstallMain(program, Main{PodCIDRs: networks("10.1.0.0/24")}); err != nil {
		t.Fatal(err)
	}
	p := pod.Pod{Network: "tcpilot", Container: "c1", Interface: "eth0", NetNS: "/run/netns/none", Cookie: 7, Namespace: "shop", Name: "web-1", Made: true}
	pods = podrecord.Dir(n.Records)
	if err := errors.Join(pods.Put(&p), os.MkdirAll(filepath.Join(n.Leases, "tcpilot"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", "last_reserved_ip.0", "10.1.0.2"} {
		put(t, filepath.Join(n.Leases, "tcpilot", name), "")
	}
	return n, program, pods, p.Key()
}

// uninstall is 'tcpilot cni uninstall --main'.
func uninstall(t *testing.T, n Node) (did []string, waits podrecord.Waits) {
	t.Helper()
	did, err := n.UninstallMain()
	if err != nil {
		t.Fatal(err)
	}
	more, waits, err := n.Uninstall(false)
	if err != nil {
		t.Fatal(err)
	}
	return append(did, more...), waits
}

func expectFiles(t *testing.T, when, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %s has %q, want %q", when, dir, got, want)
	}
}

// end is DEL of the pod.
func end(t *testing.T, n Node, pods podrecord.Dir, key pod.Key) []string {
	t.Helper()
	if _, err := pods.Delete(key); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(n.Leases, "tcpilot", "10.1.0.2")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	did, err := Finish(n.Records, n.Leases)
	if err != nil {
		t.Fatal(err)
	}
	return did
}

// A link in the place of the main plugin's configuration is not taken for no configuration: if its target does not exist, the node has
// no network. One in the place of the program is removed.
func TestUninstallMainDanglingLinks(t *testing.T) {
	n, _, _, _ := running(t)
	file := filepath.Join(n.ConfDir, mainFile)
	if err := errors.Join(os.Remove(file), os.Symlink("/nowhere/tcpilot.conflist", file)); err != nil {
		t.Fatal(err)
	}
	if did, err := n.UninstallMain(); did != nil || err == nil || !strings.Contains(err.Error(), file+" is a symbolic link whose target does not exist here") {
		t.Errorf("configuration: %q, %v", did, err)
	}
	expectFiles(t, "configuration", n.ConfDir, mainFile)
	if err := errors.Join(os.Remove(file), os.Remove(n.Program()), os.Symlink("/nowhere/tcpilot-cni", n.Program())); err != nil {
		t.Fatal(err)
	}
	if did, _, err := n.Uninstall(true); err != nil || !slices.Equal(did, []string{"removed " + n.Program()}) {
		t.Errorf("program: %q, %v", did, err)
	}
	if _, err := os.Lstat(n.Program()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("program: %v", err)
	}
}

// The program, and a configuration with which pods only end, stay for the last pod, and its end removes them.
func TestUninstallMainWaitsForPods(t *testing.T) {
	n, _, pods, key := running(t)
	main := get(t, filepath.Join(n.ConfDir, mainFile))
	for i, want := range [][]string{{"removed " + filepath.Join(n.ConfDir, mainFile)}, nil} {
		if did, waits := uninstall(t, n); !slices.Equal(did, want) || !slices.Equal(waits.Pods, []string{"shop/web-1"}) {
			t.Errorf("call %d: %q, %+v", i, did, waits)
		}
	}
	expectFiles(t, "with a pod", n.ConfDir, uninstalledFile)
	var list struct {
		Name    string
		Plugins []map[string]any
	}
	text := get(t, n.uninstalled())
	if err := json.Unmarshal([]byte(text), &list); err != nil || list.Name != "tcpilot" || list.Plugins[0]["uninstalled"] != true || strings.Replace(text, `"uninstalled": true, `, "", 1) != main {
		t.Errorf("%s, %v", text, err)
	}
	if did, err := Finish(n.Records, n.Leases); err != nil || did != nil {
		t.Errorf("with a pod: %q, %v", did, err)
	}
	if did := end(t, n, pods, key); !slices.Equal(did, []string{"removed " + n.uninstalled(), "removed " + n.Program()}) {
		t.Errorf("%q", did)
	}
	expectFiles(t, "at the end", n.ConfDir)
	expectFiles(t, "at the end", n.BinDir, "flannel", "host-local", "portmap")
	expectFiles(t, "at the end", n.Leases)
	expectNoRemoval(t, n)
	if did, waits := uninstall(t, n); did != nil || !waits.None() {
		t.Errorf("again: %q, %+v", did, waits)
	}
}

// Whatever step was the last one of a process that was killed, the next one that begins does the rest.
func TestRemovalAfterCrashes(t *testing.T) {
	for what, crash := range map[string]func(t *testing.T, n Node) error{
		"before the other configuration": func(t *testing.T, n Node) error { _, err := n.beginRemoval(); return err },
		"with both configurations": func(t *testing.T, n Node) error {
			text, err := onlyEnding([]byte(get(t, filepath.Join(n.ConfDir, mainFile))))
			put(t, n.uninstalled(), string(text))
			_, begun := n.beginRemoval()
			return errors.Join(err, begun)
		},
		"before Uninstall":           func(t *testing.T, n Node) error { _, err := n.UninstallMain(); return err },
		"without the configurations": func(t *testing.T, n Node) error { uninstall(t, n); return os.Remove(n.uninstalled()) },
		"without the program":        func(t *testing.T, n Node) error { uninstall(t, n); return os.Remove(n.Program()) },
		"without anything": func(t *testing.T, n Node) error {
			uninstall(t, n)
			return errors.Join(os.Remove(n.uninstalled()), os.Remove(n.Program()))
		},
		"an empty removal": func(t *testing.T, n Node) error {
			_, err := n.UninstallMain()
			put(t, filepath.Join(n.Records, ".removal"), "")
			return err
		},
	} {
		for _, again := range []bool{true, false} {
			n, _, pods, key := running(t)
			if err := crash(t, n); err != nil {
				t.Fatal(err)
			}
			_, err := os.Stat(filepath.Join(n.ConfDir, mainFile))
			installed := err == nil
			if again {
				uninstall(t, n)
			}
			end(t, n, pods, key)
			if !again && (installed || what == "an empty removal") { // uninstall has to be repeated, and pods can begin, or nothing is known
				expectFiles(t, what, n.BinDir, "flannel", "host-local", "portmap", Type)
				uninstall(t, n)
			}
			expectFiles(t, what, n.ConfDir)
			expectFiles(t, what, n.BinDir, "flannel", "host-local", "portmap")
			expectNoRemoval(t, n)
		}
	}
}

// A configuration that stays because the other one cannot be written works as before.
func TestUninstallMainFails(t *testing.T) {
	n, _, pods, _ := running(t)
	if err := os.MkdirAll(n.uninstalled(), 0o755); err != nil { // not a file
		t.Fatal(err)
	}
	put(t, filepath.Join(n.uninstalled(), "file"), "")
	for _, before := range []bool{false, true} {
		if before {
			if _, err := n.beginRemoval(); err != nil {
				t.Fatal(err)
			}
		}
		if did, err := n.UninstallMain(); err == nil || did != nil {
			t.Errorf("%q, %v", did, err)
		}
		if r, err := pods.Removal(); err != nil || (r != nil) != before {
			t.Errorf("begun before: %v: %+v, %v", before, r, err)
		}
		expectFiles(t, "after a failure", n.ConfDir, mainFile, uninstalledFile)
	}
}

// A removal of which nothing is known begins now.
func TestRemovalBeginsAnew(t *testing.T) {
	n, _, pods, _ := running(t)
	put(t, filepath.Join(n.Records, ".removal"), "{")
	uninstall(t, n)
	if r, err := pods.Removal(); err != nil || time.Since(r.Since) > time.Minute || r.ConfDir != n.ConfDir {
		t.Errorf("%+v, %v", r, err)
	}
}

// Installing again, as the main plugin or behind another one, cancels the removal.
func TestInstallCancelsTheRemoval(t *testing.T) {
	for what, install := range map[string]func(n Node, program string) (did []string, warning string, err error){
		"main": func(n Node, program string) ([]string, string, error) {
			return n.InstallMain(program, Main{PodCIDRs: networks("10.1.0.0/24")})
		},
		"chained": func(n Node, program string) ([]string, string, error) {
			if _, _, err := n.Install(program); err == nil || !strings.Contains(err.Error(), "no network configuration in") {
				return nil, "", errors.New("the configuration of pods that end was taken for a network's")
			}
			return nil, "", errors.Join(os.WriteFile(filepath.Join(n.ConfDir, "20.conflist"), []byte(flannel), 0o600), func() error { _, _, err := n.Install(program); return err }())
		},
		"by hand": func(n Node, program string) ([]string, string, error) {
			return nil, "", os.WriteFile(filepath.Join(n.ConfDir, "20.conflist"), []byte(strings.Replace(flannel, `"flannel"`, `"tcpilot-cni"`, 1)), 0o600)
		},
	} {
		n, program, pods, key := running(t)
		uninstall(t, n)
		did, _, err := install(n, program)
		if err != nil || what == "main" && (len(did) != 2 || did[0] != "cancelled the removal of "+n.Program()) {
			t.Errorf("%s: %q, %v", what, did, err)
		}
		if did := end(t, n, pods, key); did != nil {
			t.Errorf("%s: the end of the pod has %q", what, did)
		}
		if what != "by hand" {
			expectNoRemoval(t, n)
			if _, err := os.Stat(n.uninstalled()); err == nil {
				t.Errorf("%s: %s is left", what, n.uninstalled())
			}
		}
	}
}

// The configuration for the end of pods does not stay beside one that has the plugin already.
func TestInstallAgainRemovesTheOther(t *testing.T) {
	n, program := node(t, map[string]string{"a.conflist": flannel})
	for i, want := range []int{2, 0} {
		put(t, n.uninstalled(), flannel)
		if did, _, err := n.Install(program); err != nil || len(did) != want {
			t.Errorf("call %d: %q, %v", i, did, err)
		}
		expectFiles(t, "installed", n.ConfDir, "a.conflist")
	}
}

// The end of a pod does not wait for a process that installs or removes the plugin.
func TestFinishDoesNotWaitForTheLock(t *testing.T) {
	n, _, pods, key := running(t)
	uninstall(t, n)
	release, err := n.lock()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan []string)
	go func() { ended <- end(t, n, pods, key) }()
	select {
	case did := <-ended:
		if did != nil {
			t.Errorf("%q", did)
		}
		release()
	case <-time.After(10 * time.Second):
		release()
		t.Fatalf("it waited, and then %q", <-ended)
	}
	expectFiles(t, "the other process may install", filepath.Join(n.Leases, "tcpilot"), "last_reserved_ip.0", "lock")
	if did := end(t, n, pods, key); len(did) != 2 {
		t.Errorf("%q", did)
	}
}

// In another mount namespace, the directories of the removal may be others, or not there.
func TestFinishLeavesOtherDirectories(t *testing.T) {
	for _, exists := range []bool{true, false} {
		n, _, pods, key := running(t)
		uninstall(t, n)
		other := n.ConfDir + "-of-another-namespace"
		if err := os.Rename(n.ConfDir, other); err != nil {
			t.Fatal(err)
		}
		if exists {
			if err := os.Mkdir(n.ConfDir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if did := end(t, n, pods, key); did != nil {
			t.Errorf("%q", did)
		}
		expectFiles(t, "other directories", other, uninstalledFile)
		expectFiles(t, "other directories", n.BinDir, "flannel", "host-local", "portmap", Type)
		if r, err := pods.Removal(); err != nil || r == nil {
			t.Errorf("%v, %v", r, err)
		}
	}
}

// containerd executes DEL again, twice at once, when the kubelet has it remove the sandbox: until then, or for some minutes, the plugin stays.
func TestRemovalWaitsForRepeatedDEL(t *testing.T) {
	for _, c := range []struct {
		what   string
		repeat func(d podrecord.Dir, k pod.Key, before func()) error
		last   bool
	}{
		{"a pair", func(d podrecord.Dir, k pod.Key, _ func()) error { return errors.Join(d.Repeated(k), d.Repeated(k)) }, true},
		{"one", func(d podrecord.Dir, k pod.Key, _ func()) error { return d.Repeated(k) }, false},
		{"one, and one later", func(d podrecord.Dir, k pod.Key, before func()) error {
			err := d.Repeated(k)
			before()
			return errors.Join(err, d.Repeated(k))
		}, false},
		{"lost", func(d podrecord.Dir, k pod.Key, before func()) error { before(); return nil }, true},
		{"the second of a pair is lost", func(d podrecord.Dir, k pod.Key, before func()) error {
			err := d.Repeated(k)
			before()
			return err
		}, true},
	} {
		n, _, pods, key := running(t)
		uninstall(t, n)
		if err := pods.Stopped(key, ""); err != nil {
			t.Fatal(err)
		}
		if did := end(t, n, pods, key); did != nil {
			t.Errorf("%s: after the first: %q", c.what, did)
		}
		if _, waits := uninstall(t, n); waits.Stopped != 1 || len(waits.Pods) != 0 {
			t.Errorf("%s: %+v", c.what, waits)
		}
		err := c.repeat(pods, key, func() {
			before := time.Now().Add(-time.Hour)
			if err := os.Chtimes(filepath.Join(n.Records, ".c1@eth0.json.stopped"), before, before); err != nil {
				t.Fatal(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if did := end(t, n, pods, key); (len(did) == 2) != c.last {
			t.Errorf("%s: %q", c.what, did)
		}
		if c.last {
			expectNoRemoval(t, n)
		}
	}
}

// A DEL of all plugins that may be repeated needs the chained one as long as the namespace is there.
func TestRemovalWaitsForTheOtherPlugins(t *testing.T) {
	n, program := node(t, map[string]string{"a.conflist": flannel})
	if _, _, err := n.Install(program); err != nil {
		t.Fatal(err)
	}
	netns, pods := filepath.Join(t.TempDir(), "netns"), podrecord.Dir(n.Records)
	put(t, netns, "")
	p := pod.Pod{Network: "cbr0", Container: "c1", Interface: "eth0", NetNS: netns, Cookie: 7}
	if err := pods.Put(&p); err != nil {
		t.Fatal(err)
	}
	if _, waits, err := n.Uninstall(false); err != nil || len(waits.Pods) != 1 {
		t.Fatalf("%+v, %v", waits, err)
	}
	if err := pods.Stopped(p.Key(), netns); err != nil {
		t.Fatal(err)
	}
	if did := end(t, n, pods, p.Key()); did != nil {
		t.Errorf("%q", did)
	}
	if err := os.Remove(netns); err != nil {
		t.Fatal(err)
	}
	if did := end(t, n, pods, p.Key()); !slices.Equal(did, []string{"removed " + n.Program()}) {
		t.Errorf("%q", did)
	}
}

// The last pods end at once, while a repeated uninstall looks.
func TestFinishAtOnce(t *testing.T) {
	n, _, pods, key := running(t)
	const count = 16
	for i := range count {
		p := pod.Pod{Network: "tcpilot", Container: "d" + string(rune('a'+i)), Interface: "eth0", NetNS: "/run/netns/none", Cookie: 7, Made: true}
		if err := pods.Put(&p); err != nil {
			t.Fatal(err)
		}
	}
	uninstall(t, n)
	var group sync.WaitGroup
	for i := range count {
		group.Go(func() {
			_, err := pods.Delete(pod.Key{Container: "d" + string(rune('a'+i)), Interface: "eth0"})
			if _, failed := Finish(n.Records, ""); err != nil || failed != nil {
				t.Error(err, failed)
			}
		})
	}
	group.Go(func() {
		if _, _, err := n.Uninstall(false); err != nil {
			t.Error(err)
		}
	})
	group.Wait()
	expectFiles(t, "with one pod", n.ConfDir, uninstalledFile)
	end(t, n, pods, key)
	expectFiles(t, "without", n.ConfDir)
	expectNoRemoval(t, n)
}
