package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
)

// paths are where objects of a kind are created.
var paths = map[string]string{"Namespace": "/api/v1/namespaces", "ServiceAccount": "/api/v1/namespaces/NS/serviceaccounts", "ConfigMap": "/api/v1/namespaces/NS/configmaps",
	"DaemonSet": "/apis/apps/v1/namespaces/NS/daemonsets", "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
	"ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"}

// The manifests are valid for a real API server, and what they allow is what this package needs.
func TestRealAPIServer(t *testing.T) {
	a := kubeapitest.FromEnvironment()
	if a == nil {
		t.Skip("TCPILOT_KUBEAPI names no API server")
	}
	manifests, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil || len(manifests) != 3 {
		t.Fatal(manifests, err)
	}
	for _, file := range manifests {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for object := range strings.SplitSeq(string(text), "\n---\n") {
			kind := field(object, `(?m)^kind: (\w+)`)
			path := strings.Replace(paths[kind], "NS", field(object, `(?m)^  namespace: (\S+)`), 1)
			if status, answer := a.Do(t, "POST", path+"?fieldValidation=Strict", "application/yaml", object); status/100 != 2 && status != http.StatusConflict {
				t.Errorf("%s: %s: %s", file, kind, answer)
			}
		}
	}
	token := field(a.Must(t, "POST", "/api/v1/namespaces/tcpilot/serviceaccounts/tcpilot/token", "application/json",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`), `"token": ?"([^"]+)"`)
	x := follow(t, kubeapitest.Kubeconfig(t, a.URL, token), "tcpilot-test")

	const pods = "/api/v1/namespaces/tcpilot/pods"
	a.Do(t, "DELETE", pods+"/probe?gracePeriodSeconds=0", "", "")
	text := a.Must(t, "POST", pods, "application/json", `{"metadata":{"name":"probe","annotations":{"a":"one"}},
		"spec":{"nodeName":"tcpilot-test","serviceAccountName":"tcpilot","containers":[{"name":"c","image":"x"}]}}`)
	var m metadata
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	uid := m.Metadata.UID
	x.expect(t, uid, "one")
	begun := time.Now()
	a.Must(t, "PATCH", pods+"/probe", "application/merge-patch+json", `{"metadata":{"annotations":{"a":"two"}}}`)
	x.expect(t, uid, "two")
	t.Logf("a change was known after %v", time.Since(begun).Round(time.Millisecond))
	for range 2 { // the second one exists
		if err := x.w.write(t.Context(), &event{"tcpilot", "probe", uid, "annotation a: nonsense", time.Now()}); err != nil {
			t.Error(err)
		}
	}
	if text := a.Must(t, "GET", "/api/v1/namespaces/tcpilot/events", "", ""); !strings.Contains(text, "annotation a: nonsense") {
		t.Error(text)
	}
	// The server was started again, and does not know the changes before.
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = x.w.watch(short, x.w.resource(), "1")
	if !errors.Is(err, errGone) {
		t.Errorf("a version that is too old: %v", err)
	}
	if _, err := x.w.do(t.Context(), "GET", "/api/v1/secrets", nil, "application/json", nil); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("secrets: %v", err)
	}
	a.Must(t, "DELETE", pods+"/probe?gracePeriodSeconds=0", "", "")
	x.expect(t, uid, "")
	followRealNodes(t, a, kubeapitest.Kubeconfig(t, a.URL, token))
}

// followRealNodes follows nodes with the service account of tcpilot-main.yaml, whose ClusterRole was created first.
func followRealNodes(t *testing.T, a *kubeapitest.Admin, kubeconfig string) {
	t.Helper()
	const at = "/api/v1/nodes"
	a.Do(t, "DELETE", at+"/node-b", "", "")
	a.Must(t, "POST", at, "application/json", `{"metadata":{"name":"node-b"},"spec":{"podCIDR":"10.1.1.0/24","podCIDRs":["10.1.1.0/24","fd00:1:0:1::/64"]}}`)
	a.Must(t, "PATCH", at+"/node-b/status", "application/merge-patch+json", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.2"},{"type":"Hostname","address":"node-b"}]}}`)
	const want = "{node-b [10.1.1.0/24 fd00:1:0:1::/64] [192.0.2.2]}"
	if n, err := ReadNode(t.Context(), kubeconfig, "node-b"); err != nil || fmt.Sprint(n) != want {
		t.Errorf("%v, %v", n, err)
	}
	x := followNodes(t, kubeconfig)
	x.expect(t, "["+want+"]")
	a.Must(t, "PATCH", at+"/node-b/status", "application/merge-patch+json", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.3"}]}}`)
	x.expect(t, strings.Replace("["+want+"]", "192.0.2.2", "192.0.2.3", 1))
	a.Must(t, "DELETE", at+"/node-b", "", "")
	x.expect(t, "[]")
}

// field is the first group of a pattern in a text.
func field(text, pattern string) string {
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1]
}
