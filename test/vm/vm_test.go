package vm

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/lab/vm"
)

// Every script that another calls by its directory is carried.
func TestScriptsAreWhole(t *testing.T) {
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

// It fetches a kernel where there is none in the cache, hence only if asked for:
// make test-vm-smoke does.
func TestRunsUnderAnotherKernel(t *testing.T) {
	kernel := os.Getenv("TCPILOT_VM_TESTS")
	if kernel == "" {
		t.Skip("TCPILOT_VM_TESTS names no kernel")
	}
	dir := t.TempDir()
	var out, errs bytes.Buffer
	m := vm.Machine{Scripts: Scripts, Kernel: kernel, Writable: []string{dir}, Limit: 5 * time.Minute}
	exit, err := m.Run(t.Context(), []string{"sh", "-c", "uname -r; echo written > " + dir + "/file; exit 3"}, &out, &errs)
	if exit != 3 || err != nil || !strings.HasPrefix(out.String(), kernel+".") {
		t.Errorf("exit %d, %v: %q, %q; want 3 and %s.x", exit, err, &out, &errs, kernel)
	}
	if data, err := os.ReadFile(dir + "/file"); string(data) != "written\n" {
		t.Errorf("the command's file: %q, %v", data, err)
	}
}
