package vm

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/vm"
)

// Every script that another one calls by its directory is embedded.
func TestScriptsAreComplete(t *testing.T) {
	calls := regexp.MustCompile(`\$here/([a-z]+)|BASH_SOURCE\[0\]}"\)/([a-z.]+)`)
	entries, err := Scripts.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := Scripts.ReadFile(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range calls.FindAllStringSubmatch(string(data), -1) {
			if _, err := Scripts.ReadFile(call[1] + call[2]); err != nil {
				t.Errorf("%s calls %s: %v", e.Name(), call[0], err)
			}
		}
	}
}

func TestKernels(t *testing.T) {
	kernels, err := vm.Kernels(Scripts)
	if err != nil || len(kernels) < 2 {
		t.Fatalf("%q, %v", kernels, err)
	}
}

// fetch runs the script, with an empty cache and with these variables.
func fetch(t *testing.T, kernel string, env ...string) (exit int, output string) {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		testenv.Missing(t, err.Error())
	}
	cmd := exec.Command("./fetch", kernel)
	cmd.Env = append(os.Environ(), append(env, "TCPILOT_VM_CACHE="+t.TempDir())...)
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// Without Debian's keyring nothing is fetched, and the script says what to do.
func TestFetchNeedsAKeyring(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "keyring.gpg")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, keyring := range []string{"/nonesuch.gpg", empty} {
		exit, output := fetch(t, "6.12", "TCPILOT_VM_KEYRING="+keyring, "TCPILOT_VM_MIRROR=file:///nonesuch")
		if exit != 125 || !strings.Contains(output, keyring) || !strings.Contains(output, "apt-get install debian-archive-keyring") {
			t.Errorf("exit %d: %s", exit, output)
		}
	}
}

// A mirror whose list is not signed is refused, even if the machine's apt accepts it. So is that of the keyring
// of another distribution.
func TestFetchRefusesWhatIsNotSigned(t *testing.T) {
	dir := t.TempDir()
	keyring, careless := filepath.Join(dir, "keyring.gpg"), filepath.Join(dir, "careless")
	for name, text := range map[string]string{
		keyring:  "no key",
		careless: "APT::Get::AllowUnauthenticated \"true\";\nAcquire::AllowInsecureRepositories \"true\";\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for kernel, suite := range map[string]string{"6.12": "debian/bookworm-backports", "6.8": "ubuntu/noble-updates"} {
		mirror, name := filepath.Dir(filepath.Join(dir, suite)), filepath.Base(suite)
		unsigned(t, filepath.Join(mirror, "dists", name), name, "linux-image-"+kernel+".0-1-generic")
		unsigned(t, filepath.Join(dir, "debian/dists/trixie"), "trixie", "ubuntu-keyring")
		exit, output := fetch(t, kernel, "APT_CONFIG="+careless, "TCPILOT_VM_KEYRING="+keyring,
			"TCPILOT_VM_MIRROR=file://"+dir+"/debian", "TCPILOT_VM_UBUNTU_MIRROR=file://"+dir+"/ubuntu")
		if exit != 125 || !strings.Contains(output, "not signed") || strings.Contains(output, "downloading") {
			t.Errorf("%s: exit %d: %s", kernel, exit, output)
		}
	}
}

// unsigned writes the list of a suite that has one package, without a signature.
func unsigned(t *testing.T, dir, suite, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "main/binary-amd64"), 0o755); err != nil {
		t.Fatal(err)
	}
	packages := []byte("Package: " + name + "\nVersion: 1\nArchitecture: amd64\nFilename: evil.deb\nSize: 1\n\n")
	for name, text := range map[string][]byte{
		"main/binary-amd64/Packages": packages,
		"Release": fmt.Appendf(nil, "Suite: %s\nComponents: main\nArchitectures: amd64\n"+
			"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n %x %d main/binary-amd64/Packages\n", suite, sha256.Sum256(packages), len(packages)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Missing commands are reported by their package: an installed program has these scripts
// without a checkout.
func TestMissingCommandsAreNamed(t *testing.T) {
	cmd := exec.Command("bash", "-c", `source ./lib.sh; PATH=; need qemu-system-x86_64 cpio`)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "apt-get install qemu-system-x86 cpio\n") {
		t.Errorf("%v: %s", err, out)
	}
	entries, err := Scripts.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if text, err := Scripts.ReadFile(e.Name()); err != nil || bytes.Contains(text, []byte("test/vm")) {
			t.Errorf("%s refers to the checkout: %v", e.Name(), err)
		}
	}
}

// It fetches a kernel if there is none in the cache, so it runs only if
// TCPILOT_VM_TESTS is set, as by make test-vm-smoke.
func TestRunsUnderAnotherKernel(t *testing.T) {
	kernel := os.Getenv("TCPILOT_VM_TESTS")
	if kernel == "" {
		t.Skip("TCPILOT_VM_TESTS names no kernel")
	}
	dir := t.TempDir()
	var out, errs bytes.Buffer
	m := vm.Machine{Scripts: Scripts, Kernel: kernel, Writable: []string{dir}, Limit: 5 * time.Minute, Fetch: 10 * time.Minute}
	exit, err := m.Run(t.Context(), []string{"sh", "-c", "uname -r; echo written > " + dir + "/file; exit 3"}, &out, &errs)
	if exit != 3 || err != nil || !strings.HasPrefix(out.String(), kernel+".") {
		t.Errorf("exit %d, %v: %q, %q; want 3 and %s.x", exit, err, &out, &errs, kernel)
	}
	if data, err := os.ReadFile(dir + "/file"); string(data) != "written\n" {
		t.Errorf("the command's file: %q, %v", data, err)
	}

	// In virtual time, idle time is skipped: 1,000 s of it are over within m.Limit.
	m.VirtualTime = true
	out.Reset()
	errs.Reset()
	exit, err = m.Run(t.Context(), []string{"bash", "-c", "sleep 1000; echo $SECONDS"}, &out, &errs)
	slept, _ := strconv.Atoi(strings.TrimSpace(out.String()))
	if exit != 0 || err != nil || slept < 1000 {
		t.Errorf("exit %d, %v, slept %d s: %q, %q", exit, err, slept, &out, &errs)
	}
}
