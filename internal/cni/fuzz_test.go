package cni

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
)

// tree lists all that is below a directory.
func tree(t *testing.T, root string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, strings.TrimPrefix(path, root))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// Whatever the configuration is, each command answers as the specification says, and writes nothing
// but a record that can be read.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		"", "{}", "null", "[]", `{"cniVersion": "1.1.0", "name": "n"}`,
		`{"cniVersion": "0.4.0", "name": "n", "timeout": "9s", "prevResult": {"ips": []}}`,
		`{"cniVersion": "1.1.0", "name": "n", "prevResult": {"cniVersion": "1.1.0"}, "runtimeConfig": {"bandwidth": {"EgressRate": 1, "egressburst": 4294967295}}}`,
		`{"cniVersion": "1.1.0", "name": "n", "prevResult": {}, "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a": "\u0000\ud800"}, "cgroupPath": "/x"}}`,
		`{"cniVersion": "1.1.0", "name": "n", "ipam": {"type": "host-local"}, "device": "netkit", "mtu": 1400, "ipMasq": true, "ipMasqExcept": ["10.0.0.0/8"], "dns": {"search": ["a"]}}`,
		`{"cniVersion": "1.1.0", "name": "n", "ipam": {}}`,
		`{"cniVersion": "0.3.1", "name": "n", "ipam": {"type": "x"}, "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"tcpilot.io/device": "netkit-l2"}}}`,
		`{"cniVersion": "1.1.0", "name": "n", "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}, null]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		root, k, ipam := t.TempDir(), newKernel(), newIPAM()
		for _, command := range []string{"ADD", "CHECK", "GC", "STATUS", "DEL"} {
			c, err := parseConfig(data)
			if err != nil {
				var stdout, stderr bytes.Buffer
				p := &plugin{Process{call{command: command}.getenv, bytes.NewReader(data), &stdout, &stderr}, newKernel(), new(fakeIPAM).execute, "", maxTimeout}
				var answer failure
				if exit := p.run(); exit != 1 || json.Unmarshal(stdout.Bytes(), &answer) != nil || answer.Code == 0 {
					t.Errorf("%s: exit %d, %q, %q", command, exit, &stdout, &stderr)
				}
				continue
			}
			e, err := parseEnvironment(call{command: command}.getenv)
			if err != nil {
				t.Fatal(err)
			}
			c.Dir = podrecord.Dir(filepath.Join(root, "pods"))
			b := newBound(time.Now().Add(time.Minute))
			a, err := (&request{environment: e, config: c, kernel: k, delegate: ipam.execute, input: data, bound: b}).do()
			b.close()
			if err == nil && command == "ADD" {
				var result map[string]any
				if err := json.Unmarshal(a.output, &result); err != nil || result == nil {
					t.Errorf("result %q: %v", a.output, err)
				}
				if pods := records(t, c.Dir); len(pods) != 1 || pods[0].Network != c.Network || pods[0].Key() != e.key {
					t.Errorf("records %+v", pods)
				}
			}
			if command == "DEL" && err != nil {
				t.Errorf("DEL: %v", err)
			}
		}
		if len(k.made) > 0 || len(ipam.held) > 0 {
			t.Errorf("left devices %v, addresses %v", k.made, ipam.held)
		}
		if left := tree(t, root); strings.Join(left, " ") != "" && strings.Join(left, " ") != " /pods" {
			t.Errorf("left %q", left)
		}
	})
}

// Whatever the environment is, no record is outside of the directory, DEL removes what ADD made, and
// what is accepted is what the CNI library accepts.
func FuzzEnvironment(f *testing.F) {
	f.Add("c1", "eth0", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1")
	f.Add("../../x", "../x", "K8S_POD_NAME=../../x")
	f.Add("a", "@b.json", ";;=;K8S_POD_UID==;K8S_POD_NAME=a=b")
	f.Add("a@b", "..", "IgnoreUnknown=TRUE;X=\x00")
	f.Add(strings.Repeat("a", 200), strings.Repeat("b", 15), "X=1;IgnoreUnknown=0")
	f.Fuzz(func(t *testing.T, container, iface, args string) {
		root := t.TempDir()
		d := podrecord.Dir(filepath.Join(root, "a", "pods"))
		env := map[string]string{"CNI_CONTAINERID": container, "CNI_IFNAME": iface, "CNI_ARGS": args}
		o := call{command: "ADD", dir: d, env: env}.run(t)

		valid := utils.ValidateContainerID(container) == nil && utils.ValidateInterfaceName(iface) == nil
		ours := pod.CheckContainer(container) == nil && pod.CheckInterface(iface) == nil
		if ours && !valid {
			t.Errorf("the library refuses container %q, interface %q", container, iface)
		}
		if valid && !ours && len(container) <= 200 && utf8.ValidString(iface) && !strings.ContainsFunc(iface, unicode.IsControl) {
			t.Errorf("container %q, interface %q were refused", container, iface)
		}
		var library struct {
			types.CommonArgs
			K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID, K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString
		}
		got, err := parseArgs(args)
		if types.LoadArgs(args, &library) == nil && pod.IsName(string(library.K8S_POD_NAMESPACE)) && pod.IsName(string(library.K8S_POD_NAME)) && pod.IsName(string(library.K8S_POD_UID)) &&
			!strings.Contains(args, "CommonArgs=") { // the library takes it for a key
			want := podArgs{string(library.K8S_POD_NAMESPACE), string(library.K8S_POD_NAME), string(library.K8S_POD_UID)}
			if overwritten := strings.Count(args, "K8S_POD_") > 4; err != nil && !overwritten || err == nil && got != want {
				t.Errorf("CNI_ARGS %q: %+v, %v; the library reads %+v", args, got, err, want)
			}
		}

		if accepted := ours && err == nil; accepted != (o.exit == 0) {
			t.Fatalf("exit %d: %s", o.exit, o.stdout)
		}
		if o.exit != 0 {
			if left := tree(t, root); len(left) != 1 {
				t.Errorf("left %q", left)
			}
			return
		}
		if left := tree(t, root); len(left) != 4 {
			t.Errorf("left %q", left)
		}
		if pods := records(t, d); len(pods) != 1 || pods[0].Key() != (pod.Key{Container: container, Interface: iface}) || pods[0].Name != got.Name {
			t.Errorf("records %+v", pods)
		}
		call{command: "DEL", dir: d, env: env}.succeeds(t)
		if left := tree(t, root); len(left) != 3 {
			t.Errorf("after DEL: %q", left)
		}
	})
}
