package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// beginRemoval is what 'tcpilot cni uninstall' writes. It returns what the removal removes.
func beginRemoval(t *testing.T, d podrecord.Dir, bin string) (program string) {
	t.Helper()
	conf := t.TempDir()
	var st syscall.Stat_t
	if err := errors.Join(syscall.Stat(conf, &st), d.BeginRemoval(&podrecord.Removal{ConfDir: conf, BinDir: bin, Inode: st.Ino})); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(bin, "tcpilot-cni")
}

// exists reports whether the program is there, and fails unless there is a removal as long as it is.
func exists(t *testing.T, d podrecord.Dir, program string) bool {
	t.Helper()
	_, err := os.Stat(program)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if r, failed := d.Removal(); failed != nil || (r != nil) != (err == nil) {
		t.Errorf("the program: %v; the removal: %+v, %v", err, r, failed)
	}
	return err == nil
}

// Pods that begin while the main plugin is being removed are refused, and leave nothing; those of other networks are not.
func TestUninstalledAdd(t *testing.T) {
	for what, c := range map[string]struct {
		keys    map[string]any
		removal bool
		refused bool
	}{
		"the configuration of pods that end": {map[string]any{"uninstalled": true}, false, true},
		"a configuration of before":          {map[string]any{"name": "tcpilot"}, true, true},
		"another network":                    {nil, true, false},
		"no removal":                         {map[string]any{"name": "tcpilot"}, false, false},
	} {
		add := mainCall(t, "ADD", c.keys)
		if c.removal {
			beginRemoval(t, add.dir, t.TempDir())
		}
		if !c.refused {
			add.succeeds(t)
			continue
		}
		add.fails(t, codeUnavailable, "tcpilot-cni is uninstalled")
		if len(add.kernel.calls) != 0 || len(add.ipam.calls) != 0 || len(records(t, add.dir)) != 0 {
			t.Errorf("%s: %q, %q, records %v", what, add.kernel.calls, add.ipam.calls, records(t, add.dir))
		}
	}
	// The removal is complete before ADD has written the record.
	gone := mainCall(t, "ADD", map[string]any{"name": "tcpilot"})
	gone.program = filepath.Join(t.TempDir(), "tcpilot-cni")
	gone.fails(t, codeUnavailable, "tcpilot-cni is uninstalled")
	if len(gone.kernel.calls) != 0 || len(gone.ipam.calls) != 0 || len(records(t, gone.dir)) != 0 {
		t.Errorf("%q, %q, records %v", gone.kernel.calls, gone.ipam.calls, records(t, gone.dir))
	}
	if err := os.WriteFile(gone.program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	gone.succeeds(t)
	chained := call{command: "ADD", dir: newDir(t)}
	beginRemoval(t, chained.dir, t.TempDir())
	chained.succeeds(t)
}

// The last DEL removes the plugin: with the configuration of ADD at once, with the one that is only for the end of pods when the
// runtime has removed the sandbox too. STATUS fails with that one, and removes the plugin when no DEL comes any more.
func TestUninstalledDel(t *testing.T) {
	for _, present := range []bool{false, true} {
		add := mainCall(t, "ADD", map[string]any{"name": "tcpilot"})
		add.succeeds(t)
		bin := t.TempDir()
		program := beginRemoval(t, add.dir, bin)
		if err := os.WriteFile(program, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		del := add
		del.command, del.keys = "DEL", map[string]any{"name": "tcpilot", "prevResult": nil, "ipam": add.keys["ipam"]}
		if present {
			del.keys["uninstalled"] = true
		}
		status := del
		status.command = "STATUS"
		if present {
			status.fails(t, codeUnavailable, "tcpilot-cni is uninstalled")
		}
		o := del.succeeds(t)
		if got := exists(t, add.dir, program); got != present {
			t.Errorf("present configuration %v: after DEL, the program exists: %v", present, got)
		}
		if said := strings.Contains(o.stderr, "removed "+program+", because the plugin is uninstalled"); said == present {
			t.Errorf("said %q", o.stderr)
		}
		if !present {
			continue
		}
		gone := del
		gone.env = map[string]string{"CNI_IFNAME": "eth1", "CNI_NETNS": ""}
		gone.succeeds(t)
		status.fails(t, codeUnavailable, "tcpilot-cni is uninstalled")
		if !exists(t, add.dir, program) {
			t.Error("it was not awaited that the sandbox is removed")
		}
		gone.succeeds(t)
		if exists(t, add.dir, program) {
			t.Error("the program is left")
		}
	}
}

// A pod ends also if its DEL cannot be noted. The plugin stays then.
func TestUninstalledDelWithoutNote(t *testing.T) {
	del := mainCall(t, "ADD", map[string]any{"name": "tcpilot"})
	del.succeeds(t)
	program := beginRemoval(t, del.dir, t.TempDir())
	note := filepath.Join(string(del.dir), ".c1@eth1.json.stopped")
	if err := errors.Join(os.WriteFile(program, nil, 0o755), os.MkdirAll(filepath.Join(note, "no file"), 0o755)); err != nil {
		t.Fatal(err)
	}
	del.command, del.keys = "DEL", map[string]any{"name": "tcpilot", "prevResult": nil, "ipam": del.keys["ipam"], "uninstalled": true}
	o := del.succeeds(t)
	if len(records(t, del.dir)) != 0 || !exists(t, del.dir, program) || !strings.Contains(o.stderr, "note DEL of pod") {
		t.Errorf("records %v, said %q", records(t, del.dir), o.stderr)
	}
}

// STATUS removes what the end of the last pod could not.
func TestUninstalledStatus(t *testing.T) {
	status := mainCall(t, "STATUS", map[string]any{"prevResult": nil, "uninstalled": true})
	program := beginRemoval(t, status.dir, t.TempDir())
	if err := os.Mkdir(program, 0o755); err != nil { // cannot be removed by unlink, but it is empty
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(program, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if o := status.run(t); !strings.Contains(o.stderr, "directory not empty; 'tcpilot cni uninstall' repeats the removal") {
		t.Errorf("said %q", o.stderr)
	}
	// A process that was killed has left the configuration of before.
	before := mainCall(t, "STATUS", map[string]any{"prevResult": nil, "name": "tcpilot"})
	before.dir = status.dir
	before.fails(t, codeUnavailable, "tcpilot-cni is uninstalled")
	if err := os.Remove(filepath.Join(program, "file")); err != nil {
		t.Fatal(err)
	}
	status.fails(t, codeUnavailable, "tcpilot-cni is uninstalled")
	if exists(t, status.dir, program) {
		t.Error("the program is left")
	}
}

// A chained plugin's program stays after DEL as long as the namespace is there: the DEL of the plugins before it in the chain comes
// afterwards, and if it fails, the runtime repeats both.
func TestUninstalledChainedDel(t *testing.T) {
	ns := filepath.Join(t.TempDir(), "blue")
	if err := os.WriteFile(ns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cookies[ns] = 4107
	defer delete(cookies, ns)
	add := call{command: "ADD", dir: newDir(t), env: map[string]string{"CNI_NETNS": ns}}
	add.succeeds(t)
	program := beginRemoval(t, add.dir, t.TempDir())
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	del := add
	del.command = "DEL"
	for range 2 {
		del.succeeds(t)
		if len(records(t, add.dir)) != 0 || !exists(t, add.dir, program) {
			t.Errorf("records %v", records(t, add.dir))
		}
	}
	if err := os.Remove(ns); err != nil {
		t.Fatal(err)
	}
	del.succeeds(t)
	if exists(t, add.dir, program) {
		t.Error("the program is left")
	}
}

// A process of the plugin whose program was removed while it waited refuses pods; one whose program was replaced does not.
func TestRootProgramIsRemoved(t *testing.T) {
	testenv.Root(t)
	bin := buildPlugins(t)
	text, err := os.ReadFile(filepath.Join(bin, "tcpilot-cni"))
	if err != nil {
		t.Fatal(err)
	}
	for _, replaced := range []bool{false, true} {
		program := filepath.Join(t.TempDir(), "tcpilot-cni")
		if err := os.WriteFile(program, text, 0o755); err != nil {
			t.Fatal(err)
		}
		status := exec.Command(program)
		status.Env = []string{"CNI_COMMAND=STATUS", "CNI_PATH=" + bin}
		stdin, err := status.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stdout strings.Builder
		status.Stdout = &stdout
		if err := status.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond) // it waits for its input
		err = os.Remove(program)
		if err == nil && replaced {
			err = os.WriteFile(program, text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(stdin, `{"cniVersion": "1.1.0", "name": "tcpilot", "type": "tcpilot-cni", "dir": %q, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}`, filepath.Join(t.TempDir(), "pods"))
		stdin.Close()
		if err := status.Wait(); (err == nil) != replaced || strings.Contains(stdout.String(), "tcpilot-cni is uninstalled") == replaced {
			t.Errorf("replaced %v: %v, %s", replaced, err, &stdout)
		}
	}
}

// Pods of the main plugin end at once with the configuration of their ADD, after it was uninstalled: each DEL succeeds, also
// while another one removes the program, and nothing is left.
func TestRootUninstalledAtOnce(t *testing.T) {
	testenv.Root(t)
	bin := buildPlugins(t)
	c := newCluster(t, bin, "1.1.0", `"device": "veth", "ipMasq": true`, `{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}`)
	const count = 8
	var pods []*libcni.RuntimeConf
	for i := range count {
		rt := attachment(testenv.NetNS(t).Path(), fmt.Sprint("c", i), "eth0")
		if _, err := c.AddNetworkList(t.Context(), c.list, rt); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, rt)
	}
	program := beginRemoval(t, c.records, bin)
	if err := c.DelNetworkList(t.Context(), c.list, pods[0]); err != nil || !exists(t, c.records, program) {
		t.Errorf("the first: %v", err)
	}
	var group sync.WaitGroup
	for _, rt := range pods[1:] {
		group.Go(func() {
			c.host.Do(t, func() {
				if err := c.DelNetworkList(t.Context(), c.list, rt); err != nil {
					t.Error(err)
				}
			})
		})
	}
	group.Wait()
	if exists(t, c.records, program) {
		t.Errorf("the program is left: %s", c.log)
	}
	c.expectNothing(t)
}
