package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/netns"
)

// Each capability of the manifest is needed: without it, something does not work, and tcpilot says so.
func TestRootEachPrivilegeIsNeeded(t *testing.T) {
	t.Parallel()
	w := newPlainWorld(t, "far")
	n := newNode(t, w)
	config := filepath.Join(n.dir, "etc/tcpilot.yaml")
	text, err := os.ReadFile(config)
	must(t, err)
	must(t, os.WriteFile(config, append(text, "host: {usec_timestamps: [10.0.0.0/8]}\n"...), 0o644))
	// A network namespace with a setting of its own, which only a process with more privileges than the container is in.
	ns := exec.CommandContext(t.Context(), "sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control; exec sleep 300")
	ns.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	must(t, ns.Start())
	t.Cleanup(func() { _ = ns.Process.Kill(); _ = ns.Wait() })

	must(t, w.remotes[0].Host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0) }))

	named := func(y engine.Yield) bool { return y.NetNS == filepath.Base(w.remotes[0].Host.Path()) }
	cookie, err := netns.Cookie(fmt.Sprintf("/proc/%d/ns/net", ns.Process.Pid))
	must(t, err)
	ownSetting := func(y engine.Yield) bool { return y.NetNS == strconv.FormatUint(cookie, 10) }
	t.Run("all", func(t *testing.T) {
		n.startDaemon(t)
		defer n.stop(t)
		eventually(t, 20*time.Second, "the namespace's own setting is known", func() error {
			if st := n.status(t); !slices.ContainsFunc(st.Yields, ownSetting) || len(st.Degraded) > 0 {
				return fmt.Errorf("yields %v, degraded %q", st.Yields, st.Degraded)
			}
			return nil
		})
	})
	t.Run("without SYS_ADMIN", func(t *testing.T) {
		exited, _ := n.container(t, "tcpilot.yaml", "tcpilot", "SYS_ADMIN")
		if err := <-exited; err == nil || !strings.Contains(n.log.String(), "needs root (CAP_SYS_ADMIN)") {
			t.Errorf("%v\n%s", err, n.log)
		}
	})
	for _, name := range []string{"NET_ADMIN", "SYS_PTRACE"} {
		t.Run("without "+name, func(t *testing.T) {
			n.startDaemon(t, name)
			defer n.stop(t)
			// Once the setting of a namespace with a name is known, all were looked at.
			var st api.Status
			eventually(t, 20*time.Second, "the namespaces were looked at", func() error {
				if st = n.status(t); !slices.ContainsFunc(st.Yields, named) {
					return fmt.Errorf("yields %v", st.Yields)
				}
				return nil
			})
			if len(st.Degraded) == 0 || !strings.Contains(st.Degraded[0], "CAP_"+name+" is missing") {
				t.Errorf("degraded: %q", st.Degraded)
			}
			if fails := slices.ContainsFunc(st.Degraded, func(why string) bool { return strings.Contains(why, "routes cannot be changed") }); fails != (name == "NET_ADMIN") {
				t.Errorf("degraded: %q", st.Degraded)
			}
			if found := slices.ContainsFunc(st.Yields, ownSetting); found != (name != "SYS_PTRACE") {
				t.Errorf("the namespace with an own setting is found: %v", found)
			}
		})
	}
}
