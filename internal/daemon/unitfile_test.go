package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// unitFile is the systemd unit as it is installed, with programs below bin.
func unitFile(t *testing.T, bin string) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/tcpilot.service")
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "@bindir@", bin)
}

func script(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// A stop undoes everything; a restart, or a failure that is followed by a restart, does
// not.
func TestUnitDetachesOnStopOnly(t *testing.T) {
	bin := t.TempDir()
	var command string
	for line := range strings.Lines(unitFile(t, bin)) {
		if rest, ok := strings.CutPrefix(line, "ExecStopPost=/bin/sh -c '"); ok {
			command = strings.TrimSuffix(rest, "'\n")
		}
	}
	// As systemd.service(5) has it: $$ is a dollar sign, %n the unit's name.
	command = strings.NewReplacer("$$", "$", "%n", "tcpilot.service").Replace(command)
	if command == "" {
		t.Fatal("the unit has no ExecStopPost of the expected form")
	}
	script(t, filepath.Join(bin, "systemctl"), `test "$*" = "list-jobs --no-legend tcpilot.service" && printf "%s" "$JOBS"`)
	script(t, filepath.Join(bin, "tcpilot"), `echo "$@"`)
	for _, c := range []struct{ name, jobs, result, want string }{
		{"systemctl stop", "1733 tcpilot.service stop running\n", "success", "detach"},
		{"systemctl stop that timed out", "1733 tcpilot.service stop running\n", "timeout", "detach"},
		{"systemctl restart", "1733 tcpilot.service restart running\n", "success", ""},
		{"a start that waits", "1733 tcpilot.service start waiting\n", "success", ""},
		{"tcpilot detach", "", "success", "detach"},
		{"a crash", "", "signal", ""},
		{"the watchdog", "", "watchdog", ""},
	} {
		cmd := exec.Command("/bin/sh", "-c", command)
		cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "JOBS=" + c.jobs, "SERVICE_RESULT=" + c.result}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, out, err, c.want)
		}
	}
}

// systemd-analyze finds no mistake in the unit, and rates its exposure as low.
func TestUnitIsValid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		testenv.Missing(t, "systemd-analyze is not installed (package systemd)")
	}
	bin := t.TempDir()
	script(t, filepath.Join(bin, "tcpilot"), "")
	file := filepath.Join(bin, "tcpilot.service")
	if err := os.WriteFile(file, []byte(unitFile(t, bin)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify", "--man=no", file}, {"security", "--offline=yes", "--threshold=40", file}} {
		out, err := exec.Command(analyze, args...).CombinedOutput()
		if err != nil || args[0] == "verify" && strings.Contains(string(out), "tcpilot.service:") {
			t.Errorf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// The settings that confine the daemon, feed its watchdog and keep its programs attached across a
// restart are in the unit.
func TestUnitIsConfined(t *testing.T) {
	unit := unitFile(t, "/bin")
	for _, want := range []string{
		"Type=notify", "WatchdogSec=", "ExecStart=/bin/tcpilot run --keep-attached", "ProtectControlGroups=yes",
		"ProtectSystem=strict", "ReadOnlyPaths=/sys -/proc/sys ", "ReadWritePaths=/sys/fs/bpf\n",
		"RestrictNamespaces=net\n", "SystemCallFilter=@system-service ", "DevicePolicy=closed", "MemoryMax=",
	} {
		if !strings.Contains(unit, "\n"+want) {
			t.Errorf("no %s", strings.TrimSpace(want))
		}
	}
}
