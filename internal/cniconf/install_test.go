package cniconf

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/defaults"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
)

// node is a node with these files of network configurations, and the programs of flannel's plugins.
func node(t *testing.T, files map[string]string) (n Node, program string) {
	t.Helper()
	d := t.TempDir()
	n = Node{ConfDir: filepath.Join(d, "net.d"), BinDir: filepath.Join(d, "opt/bin"), Records: filepath.Join(d, "pods"), Socket: defaults.Socket}
	if err := os.Mkdir(n.ConfDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		put(t, filepath.Join(n.ConfDir, name), text)
	}
	if err := os.MkdirAll(n.BinDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range programs {
		put(t, filepath.Join(n.BinDir, name), "")
	}
	program = filepath.Join(d, "program")
	put(t, program, "#!version 1\n")
	return n, program
}

// loopback is a configuration that CRI-O installs.
const loopback = `{"cniVersion": "1.0.0", "name": "loopback", "plugins": [{"type": "loopback"}]}`

// programs are those of the plugins of flannel.
var programs = []string{"flannel", "portmap"}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestInstallAndUninstallRestoreTheNode(t *testing.T) {
	files := map[string]string{"10-flannel.conflist": flannel, "99-loopback.conf": `{"type":"loopback"}`, "zz.conflist": flannel}
	n, program := node(t, files)
	did, _, err := n.Install(program)
	if err != nil || len(did) != 2 {
		t.Fatalf("%q, %v", did, err)
	}
	file := filepath.Join(n.ConfDir, "10-flannel.conflist")
	var list struct {
		Plugins []struct {
			Type, Dir, Socket string
			Capabilities      map[string]bool
		}
	}
	if err := json.Unmarshal([]byte(get(t, file)), &list); err != nil {
		t.Fatal(err)
	}
	p := list.Plugins[2]
	if p.Type != Type || p.Dir != n.Records || p.Socket != "" || len(p.Capabilities) != 3 {
		t.Errorf("%+v", p)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(n.Program()); err != nil || info.Mode().Perm() != 0o755 || get(t, n.Program()) != "#!version 1\n" {
		t.Errorf("%v, %v", info, err)
	}
	if did, _, err := n.Install(program); err != nil || did != nil {
		t.Errorf("a second time: %q, %v", did, err)
	}
	put(t, program, "#!version 2\n")
	if did, _, err := n.Install(program); err != nil || len(did) != 1 || get(t, n.Program()) != "#!version 2\n" {
		t.Errorf("a new version: %q, %v", did, err)
	}
	// The network plugin writes its file anew.
	put(t, file, flannel)
	if did, _, err := n.Install(program); err != nil || len(did) != 1 {
		t.Errorf("a file that was replaced: %q, %v", did, err)
	}
	did, waits, err := n.Uninstall(false)
	if err != nil || len(did) != 2 || !waits.None() {
		t.Errorf("%q, %+v, %v", did, waits, err)
	}
	for name, text := range files {
		if got := get(t, filepath.Join(n.ConfDir, name)); got != text {
			t.Errorf("%s is not restored:\n%s", name, got)
		}
	}
	for dir, want := range map[string]int{n.ConfDir: len(files), n.BinDir: len(programs)} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != want {
			t.Errorf("%s: %v, %v", dir, entries, err)
		}
	}
	if did, waits, err := n.Uninstall(false); err != nil || did != nil || !waits.None() {
		t.Errorf("a second time: %q, %+v, %v", did, waits, err)
	}
}

// The program stays as long as it may be needed to end pods.
func TestUninstallKeepsTheProgramForPods(t *testing.T) {
	n, program := node(t, map[string]string{"a.conflist": flannel})
	if _, _, err := n.Install(program); err != nil {
		t.Fatal(err)
	}
	netns := filepath.Join(t.TempDir(), "netns")
	put(t, netns, "")
	for container, path := range map[string]string{"here": netns, "unknown": "/no/such/directory", "gone": netns + "-of-a-pod-that-is-gone"} {
		p := pod.Pod{Network: "cbr0", Container: container, Interface: "eth0", NetNS: path, Cookie: 7}
		if err := podrecord.Dir(n.Records).Put(&p); err != nil {
			t.Fatal(err)
		}
	}
	did, waits, err := n.Uninstall(false)
	if err != nil || len(did) != 1 || !slices.Equal(waits.Pods, []string{"here", "unknown"}) || waits.Gone != 0 {
		t.Errorf("%q, %+v, %v", did, waits, err)
	}
	if get(t, filepath.Join(n.ConfDir, "a.conflist")) != flannel || get(t, n.Program()) == "" {
		t.Error("the file is not restored, or the program is gone")
	}
	if did, waits, err := n.Uninstall(true); err != nil || len(did) != 1 || !waits.None() {
		t.Errorf("by force: %q, %+v, %v", did, waits, err)
	}
	expectNoRemoval(t, n)
}

// A runtime that ends pods with its present configuration leaves the record of a pod. The program does not wait for
// it, except if the record is needed to remove what the main plugin made.
func TestUninstallDoesNotWaitForPodsThatAreGone(t *testing.T) {
	for _, made := range []bool{false, true} {
		n, program := node(t, map[string]string{"a.conflist": flannel})
		if _, _, err := n.Install(program); err != nil {
			t.Fatal(err)
		}
		p := pod.Pod{Network: "cbr0", Container: "c1", Interface: "eth0", NetNS: filepath.Join(t.TempDir(), "gone"), Cookie: 7, Made: made}
		if err := podrecord.Dir(n.Records).Put(&p); err != nil {
			t.Fatal(err)
		}
		if did, waits, err := n.Uninstall(false); err != nil || waits.None() == made || (waits.Gone == 1) != made || (len(did) == 1) != made {
			t.Errorf("made %v: %q, %+v, %v", made, did, waits, err)
		}
	}
}

func TestInstallRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a single plugin": {map[string]string{"10-a.conf": `{"type":"bridge"}`, "20.conflist": flannel}, "a single plugin"},
		"no JSON":         {map[string]string{"10-a.conflist": `{`}, "is not JSON"},
	} {
		n, program := node(t, c.files)
		if _, _, err := n.Install(program); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(n.Program()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the program was installed: %v", name, err)
		}
	}
	n, program := node(t, nil)
	var none *noConfigError
	if _, _, err := n.Install(program); !errors.As(err, &none) {
		t.Errorf("no file: %v", err)
	}
	put(t, filepath.Join(n.ConfDir, "99-loopback.conflist"), loopback)
	put(t, filepath.Join(n.BinDir, "loopback"), "")
	if _, _, err := n.Install(program); !errors.As(err, &none) || get(t, filepath.Join(n.ConfDir, "99-loopback.conflist")) != loopback {
		t.Errorf("only a loopback device: %v", err)
	}
	n.ConfDir += "/missing"
	if _, _, err := n.Install(program); !errors.As(err, &none) {
		t.Errorf("no directory: %v", err)
	}
	n, program = node(t, nil)
	put(t, filepath.Join(n.Records+".conflist"), flannel)
	if err := os.Symlink(n.Records+".conflist", filepath.Join(n.ConfDir, "10.conflist")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.Install(program); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link: %v", err)
	}
	main := `{"name":"x","plugins":[{"type":"tcpilot-cni","ipam":{"type":"host-local"}},{"type":"portmap"}]}`
	n, _ = node(t, map[string]string{"10.conflist": main})
	if _, _, err := n.Uninstall(false); err == nil || !strings.Contains(err.Error(), "key ipam") || get(t, filepath.Join(n.ConfDir, "10.conflist")) != main {
		t.Errorf("the main plugin: %v", err)
	}
}

// Configurations of others that this process cannot write are left alone.
func TestUninstallLeavesLinksOfOthers(t *testing.T) {
	n, program := node(t, map[string]string{"10.conflist": flannel})
	if _, _, err := n.Install(program); err != nil {
		t.Fatal(err)
	}
	put(t, n.Records+".conflist", flannel)
	for name, to := range map[string]string{"20.conflist": n.Records + ".conflist", "30.conflist": "/nowhere"} {
		if err := os.Symlink(to, filepath.Join(n.ConfDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if did, _, err := n.Uninstall(false); err != nil || len(did) != 2 || get(t, filepath.Join(n.ConfDir, "10.conflist")) != flannel {
		t.Errorf("%q, %v", did, err)
	}
}

// A process that is killed between any two steps leaves a whole file, and the next one cleans up.
func TestInstallAfterAKill(t *testing.T) {
	n, program := node(t, map[string]string{"10.conflist": flannel})
	file := filepath.Join(n.ConfDir, "10.conflist")
	put(t, temporary(file), `{"half`)
	put(t, temporary(n.Program()), "half")
	if did, _, err := n.Install(program); err != nil || len(did) != 2 {
		t.Fatalf("%q, %v", did, err)
	}
	for dir, want := range map[string]int{n.ConfDir: 1, n.BinDir: len(programs) + 1} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != want {
			t.Errorf("%s: %v, %v", dir, entries, err)
		}
	}
}

// A change that another program makes at the same time is not lost.
func TestReplaceRefusesAFileThatChanged(t *testing.T) {
	n, _ := node(t, map[string]string{"10.conflist": flannel})
	file := filepath.Join(n.ConfDir, "10.conflist")
	if err := replace(file, []byte("other"), []byte("next")); err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
		t.Errorf("%v", err)
	}
	if entries, err := os.ReadDir(n.ConfDir); err != nil || len(entries) != 1 || get(t, file) != flannel {
		t.Errorf("%v, %v", entries, err)
	}
}
