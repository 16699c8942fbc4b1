package lint

import (
	"regexp"
	"strings"
	"testing"
)

// mayBeSkipped has the files with tests that are skipped unless they are asked for, and the reason that
// they give. A test that needs what the environment lacks calls testenv.Missing instead, which fails
// where nothing may be missing.
var mayBeSkipped = map[string]string{
	"internal/api/peer_test.go":           "runs as a helper of TestRootOtherUsers",
	"internal/kubeapi/real_test.go":       "TCPILOT_KUBEAPI names no API server",
	"internal/daemon/memory_root_test.go": "the race detector needs many times the limit",
	"lab/report/html_test.go":             "takes a browser: TCPILOT_FULL=1",
	"test/containerd/cluster_test.go":     "TCPILOT_KUBERNETES names no directory of Kubernetes' programs",
	"test/containerd/main_test.go":        "TCPILOT_CONTAINERD names no directory of tools/test-containerd",
	"test/e2e/kubeapi_real_test.go":       "TCPILOT_KUBEAPI names no API server",
	"test/e2e/links_test.go":              "writes recorded samples: make samples",
	"test/e2e/samples_test.go":            "writes recorded samples: make samples",
	"test/e2e/services_test.go":           "TCPILOT_KUBEAPI names no API server",
	"test/vm/vm_test.go":                  "TCPILOT_VM_TESTS names no kernel",
}

func TestNoSkipsThatHideFailures(t *testing.T) {
	call := regexp.MustCompile(`\.Skip(f|Now)?\((.*)\)`)
	found := map[string]bool{}
	for _, file := range files(t) {
		if !strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "internal/testenv/") || strings.HasPrefix(file, "internal/lint/") {
			continue
		}
		for _, m := range call.FindAllStringSubmatch(read(t, file), -1) {
			found[file] = true
			if why := mayBeSkipped[file]; why == "" || m[2] != `"`+why+`"` {
				t.Errorf("%s: %s: use testenv.Missing, or fail", file, m[0])
			}
		}
	}
	for file := range mayBeSkipped {
		if !found[file] {
			t.Errorf("%s skips nothing: remove it from mayBeSkipped", file)
		}
	}
}
