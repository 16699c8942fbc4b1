package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/buffers"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestIsShort(t *testing.T) {
	const sockstat = "sockets: used 13\nTCP: inuse 2 orphan 0 tw 0 alloc 2 mem %\nUDP: inuse 0 mem 9999\n"
	for pages, want := range map[string]bool{"0": false, "1500": false, "1501": true, "9000": true} {
		got, err := isShort("1000\t2000\t3000", strings.Replace(sockstat, "%", pages, 1))
		if got != want || err != nil {
			t.Errorf("%s pages of low 1000 and pressure 2000: %v, %v", pages, got, err)
		}
	}
	for _, c := range [][2]string{{"1 2", sockstat}, {"", sockstat}, {"1 2 3", ""}, {"1 2 3", "TCP: inuse 2\n"}, {"1 2 3", strings.Replace(sockstat, "%", "x", 1)}} {
		if _, err := isShort(c[0], c[1]); err == nil {
			t.Errorf("%q, %q: no error", c[0], c[1])
		}
	}
}

func TestBufferJournal(t *testing.T) {
	j := journal[buffers.Raised]{filepath.Join(t.TempDir(), "buffers.json"), "raised buffer limits"}
	if got, err := j.read(); got != nil || err != nil {
		t.Errorf("without a file: %v, %v", got, err)
	}
	want := buffers.Raised{NetNS: 1 << 60, Which: buffers.Send, Original: 4 << 20, Limit: 8 << 20, At: 17, Why: "bound"}
	if err := j.write([]buffers.Raised{want}); err != nil {
		t.Fatal(err)
	}
	if got, err := j.read(); len(got) != 1 || got[0] != want || err != nil {
		t.Errorf("read %+v, %v", got, err)
	}
	// Cookies of another boot are those of other namespaces.
	data, _ := os.ReadFile(j.file)
	boot, _ := sysctl.Read("kernel.random.boot_id")
	if err := os.WriteFile(j.file, []byte(strings.Replace(string(data), boot, "another", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := j.read(); got != nil || err != nil {
		t.Errorf("of another boot: %v, %v", got, err)
	}
	for _, bad := range []string{"", "{", `{"raised": 3}`} {
		if err := os.WriteFile(j.file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := j.read(); err == nil || !strings.Contains(err.Error(), j.file) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := j.write(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(j.file); !os.IsNotExist(err) {
		t.Errorf("nothing is raised, and the file is there: %v", err)
	}
}

// An earlier daemon may have raised a limit (a), or have written a raise to the journal but not to the
// kernel (b), or an administrator may have changed one since (c).
func TestRootRestoreBuffers(t *testing.T) {
	testenv.Root(t)
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	const tail = "4096 16384 "
	var raised []buffers.Raised
	namespaces := map[string]*testenv.NS{}
	for name, now := range map[string]string{"a": "8388608", "b": "4194304", "c": "5000000"} {
		ns := testenv.NetNS(t)
		namespaces[name] = ns
		cookie, err := netns.Cookie(ns.Path())
		if err != nil {
			t.Fatal(err)
		}
		process := exec.Command("sleep", "60") // without one the namespace cannot be found
		t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
		ns.Do(t, func() {
			if err := process.Start(); err != nil {
				t.Error(err)
			}
			if err := sysctl.Write("net.ipv4.tcp_wmem", tail+now); err != nil {
				t.Error(err)
			}
		})
		raised = append(raised, buffers.Raised{NetNS: cookie, Which: buffers.Send, Original: 4194304, Limit: 8388608})
	}
	journal := bufferJournal(cfg)
	if err := journal.write(raised); err != nil {
		t.Fatal(err)
	}
	undone, err := restoreBuffers(cfg)
	if err != nil || len(undone) != 1 || !strings.Contains(undone[0], "tcp_wmem") || !strings.Contains(undone[0], "8388608") {
		t.Errorf("undone %q, %v", undone, err)
	}
	for name, want := range map[string]string{"a": "4194304", "b": "4194304", "c": "5000000"} {
		namespaces[name].Do(t, func() {
			if got, err := sysctl.Read("net.ipv4.tcp_wmem"); err != nil || !strings.HasSuffix(got, want) {
				t.Errorf("%s: %q, %v, want %s", name, got, err, want)
			}
		})
	}
	if undone, err := restoreBuffers(cfg); len(undone) != 0 || err != nil {
		t.Errorf("a second time: %q, %v", undone, err)
	}
}
