package daemon

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// asDaemon makes the test binary a daemon: its value is the configuration. Tests start
// the binary again with it to have a daemon in a process of its own, which they can kill
// or run in another network namespace.
const asDaemon = "TCPILOT_TEST_DAEMON"

// asDaemon with this suffix names a directory to mount the cgroup2 hierarchy on, as
// the daemon's cgroup namespace shows it.
const mountCgroupAt = asDaemon + "_CGROUP"

func mountCgroup() {
	dir := os.Getenv(mountCgroupAt)
	if dir == "" {
		return
	}
	err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err == nil {
		err = syscall.Mount("none", dir, "cgroup2", 0, "")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mount cgroup2:", err)
		os.Exit(1)
	}
}

func TestMain(m *testing.M) {
	if file := os.Getenv(asDaemon); file != "" {
		mountCgroup()
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := Run(ctx, Options{Config: file, KeepAttached: os.Getenv(asDaemon+"_KEEP") == "1", Version: "test"}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.Main(m)
}
