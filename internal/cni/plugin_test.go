package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	daemonconfig "github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podnet"
	"github.com/tcpilot/tcpilot/internal/podrecord"
)

// prevResult is the result of an earlier plugin: with keys that no version knows, and white space.
const prevResult = `{ "cniVersion": "VERSION",  "ips": [{"address": "10.1.0.5/16", "interface": 0, "version": "4"}],
	"interfaces": [{"name": "eth0", "sandbox": "/run/netns/blue", "later": [1e400]}], "dns": {} }`

// call is one run of the plugin. Its network configuration is of the newest version, behind another
// plugin, and has no daemon, unless keys say otherwise.
type call struct {
	command string
	env     map[string]string // over those of the test's pod
	keys    map[string]any    // over the usual ones; nil removes
	stdin   string            // in place of all that
	dir     podrecord.Dir
	kernel  *fakeKernel // nil: a new one
	ipam    *fakeIPAM
	program string // path of the plugin's program
}

type outcome struct {
	exit           int
	stdout, stderr string
	failure        failure // of stdout
}

// cookies are the network namespaces of the tests; "" is the runtime's.
var cookies = map[string]uint64{"": 1, "/run/netns/host": 1, "/run/netns/blue": 4105, "/run/netns/red": 4106}

// links are the interfaces of the tests' pods.
var links = map[string]pod.Link{
	"/run/netns/blue eth0": {Device: pod.Veth, Index: 2, HostIndex: 17},
	"/run/netns/blue net1": {Device: pod.Netkit, Index: 3},
}

// fakeKernel has cookies and links, and makes what it is told to. Its calls are in order.
type fakeKernel struct {
	made  map[string]bool // by name on the host
	calls []string
	fails map[string]error // by the first word of a call
	pair  *podnet.Pair     // of Make
	mtu   int              // of the default route's device
	free  bool             // CheckFree finds nothing
	lacks []pod.Device
}

func newKernel() *fakeKernel {
	return &fakeKernel{made: map[string]bool{}, fails: map[string]error{}, mtu: 9000}
}

func (k *fakeKernel) call(words ...any) error {
	k.calls = append(k.calls, strings.TrimSpace(fmt.Sprintln(words...)))
	return k.fails[words[0].(string)]
}

func (k *fakeKernel) Cookie(path string) (uint64, error) {
	if c, ok := cookies[path]; ok {
		return c, nil
	}
	return 0, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
}

func (k *fakeKernel) Find(path, name string) (pod.Link, error) {
	return links[path+" "+name], k.fails["find"]
}

func (k *fakeKernel) Has(d pod.Device) error {
	if slices.Contains(k.lacks, d) {
		return fmt.Errorf("the kernel has no %s devices", d)
	}
	return nil
}

func (k *fakeKernel) CheckFree(path, name, hostName string) error {
	if !k.free && (links[path+" "+name].Index != 0 || k.made[hostName]) {
		return fmt.Errorf("%w: %s", podnet.ErrExists, name)
	}
	return k.fails["free"]
}

func (k *fakeKernel) Make(p *podnet.Pair) (m podnet.Made, err error) {
	k.pair = p
	if err := k.call("make", p.HostName); err != nil {
		return m, err
	}
	k.made[p.HostName] = true
	m.Link = pod.Link{Device: p.Modes[len(p.Modes)-1].Device, Index: 2, HostIndex: 18}
	for _, a := range p.Addresses {
		m.Addresses = append(m.Addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	m.MAC, m.HostMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	return m, nil
}

func (k *fakeKernel) Remove(hostName string) error {
	if err := k.call("remove", hostName); err != nil {
		return err
	}
	delete(k.made, hostName)
	return nil
}

func (k *fakeKernel) Check(p *podnet.Pair, l pod.Link) error {
	return k.call("check", p.HostName, l.HostIndex, p.Addresses, p.Routes)
}

func (k *fakeKernel) MTU(v4, v6 bool) (int, error) { return k.mtu, k.fails["mtu"] }

func (k *fakeKernel) Forward(v4, v6 bool) ([]string, error) { return nil, k.call("forward", v4, v6) }

func (k *fakeKernel) Masquerade(network, device string, except []netip.Prefix) error {
	return k.call("masquerade", network, device, except)
}

func (k *fakeKernel) Unmasquerade(network string, devices ...string) error {
	return k.call("unmasquerade", network, devices)
}

func (k *fakeKernel) CheckMasquerade(network, device string, except []netip.Prefix) error {
	return k.call("check-masquerade", network, device, except)
}

func (k *fakeKernel) Masqueraded(network string) (devices []string, err error) {
	for _, c := range k.calls {
		if f := strings.Fields(c); f[0] == "masquerade" && f[1] == network {
			devices = append(devices, f[2])
		}
	}
	return devices, k.fails["masqueraded"]
}

func (c call) config() string {
	if c.stdin != "" {
		return c.stdin
	}
	keys := map[string]any{"cniVersion": "1.1.0", "name": "shop-net", "type": "tcpilot-cni", "dir": c.dir, "socket": string(c.dir) + "/none.sock", "keyOfLater": []int{1}}
	maps.Copy(keys, c.keys)
	if _, set := c.keys["prevResult"]; !set {
		keys["prevResult"] = json.RawMessage(strings.Replace(prevResult, "VERSION", keys["cniVersion"].(string), 1))
	}
	maps.DeleteFunc(keys, func(_ string, v any) bool { return v == nil })
	// Not Marshal, which compacts raw messages.
	var b strings.Builder
	for k, v := range keys {
		text, ok := v.(json.RawMessage)
		if !ok {
			text, _ = json.Marshal(v)
		}
		fmt.Fprintf(&b, "%c%q: %s", ",{"[min(1, max(0, 1-b.Len()))], k, text)
	}
	return b.String() + "}"
}

func (c call) getenv(key string) string {
	if v, ok := c.env[key]; ok {
		return v
	}
	return map[string]string{
		"CNI_COMMAND": c.command, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/blue",
		"CNI_ARGS": "K8S_POD_NAME=web-1;IgnoreUnknown=1;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=f5;OTHER=x;K8S_POD_NAMESPACE=shop",
	}[key]
}

func (c call) plugin(stdout, stderr io.Writer) *plugin {
	if c.kernel == nil {
		c.kernel = newKernel()
	}
	return &plugin{Process{c.getenv, strings.NewReader(c.config()), stdout, stderr}, c.kernel, c.ipam.execute, c.program, maxTimeout}
}

func (c call) run(t *testing.T) (o outcome) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	o.exit = c.plugin(&stdout, &stderr).run()
	o.stdout, o.stderr = stdout.String(), stderr.String()
	if o.exit != 0 {
		if err := json.Unmarshal(stdout.Bytes(), &o.failure); err != nil || o.failure.Code == 0 || o.failure.Message == "" {
			t.Errorf("%s: the error is not one of the specification: %q", c.command, o.stdout)
		}
	}
	return o
}

// succeeds runs the call, which must.
func (c call) succeeds(t *testing.T) outcome {
	t.Helper()
	o := c.run(t)
	if o.exit != 0 {
		t.Fatalf("%s failed: %s", c.command, o.stdout)
	}
	return o
}

// fails runs the call, which must end with a code and a text.
func (c call) fails(t *testing.T, want code, text string) {
	t.Helper()
	o := c.run(t)
	if o.exit != 1 || o.failure.Code != want || !strings.Contains(o.failure.Message, text) {
		t.Errorf("%s %v %v: exit %d, %s; want code %d and %q", c.command, c.env, c.keys, o.exit, o.stdout, want, text)
	}
}

func newDir(t *testing.T) podrecord.Dir { return podrecord.Dir(filepath.Join(t.TempDir(), "pods")) }

func records(t *testing.T, d podrecord.Dir) (pods []pod.Pod) {
	t.Helper()
	records, refused, err := d.List()
	if err != nil || refused != nil {
		t.Errorf("list records: %v, %v", refused, err)
	}
	for _, r := range records {
		pods = append(pods, r.Pod)
	}
	return pods
}

var raw = func(s string) json.RawMessage { return json.RawMessage(s) }

// A record has what the runtime passed, in containerd's form.
func TestAddRecords(t *testing.T) {
	d := newDir(t)
	before := time.Now()
	o := call{command: "ADD", dir: d, keys: map[string]any{"runtimeConfig": raw(`{
		"bandwidth": {"IngressRate": 1000000, "IngressBurst": 4294967295, "EgressRate": 18446744073709551615, "EgressBurst": 18446744073709551616},
		"cgroupPath": "/kubepods/burstable/podf5",
		"io.kubernetes.cri.pod-annotations": {"tcpilot.io/profile": "bulk", "empty": ""},
		"portMappings": [{"hostPort": 80}]}`)}}.succeeds(t)
	if want := strings.Replace(prevResult, "VERSION", "1.1.0", 1) + "\n"; o.stdout != want {
		t.Errorf("prevResult was changed: %s", o.stdout)
	}
	pods := records(t, d)
	if len(pods) != 1 {
		t.Fatalf("%d records", len(pods))
	}
	if added := pods[0].Added; added.Before(before) || added.After(time.Now()) {
		t.Errorf("added %v", added)
	}
	pods[0].Added, pods[0].Boot, pods[0].Uptime = time.Time{}, "", 0
	want := pod.Pod{Network: "shop-net", Container: "c1", Interface: "eth0", NetNS: "/run/netns/blue", Cookie: 4105, Namespace: "shop", Name: "web-1", UID: "f5",
		Cgroup: "/kubepods/burstable/podf5", Annotations: map[string]string{"tcpilot.io/profile": "bulk", "empty": ""},
		Bandwidth: pod.Bandwidth{Egress: 18446744073709551615, Ingress: 1000000},
		Link:      pod.Link{Device: pod.Veth, Index: 2, HostIndex: 17, Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/16")}}}
	if !reflect.DeepEqual(pods[0], want) {
		t.Errorf("recorded %+v, want %+v", pods[0], want)
	}
}

// A pod whose interface cannot be found starts, and its rules hold.
func TestAddWithoutTheInterface(t *testing.T) {
	d, k := newDir(t), newKernel()
	k.fails["find"] = errors.New("netlink: interrupted")
	o := call{command: "ADD", dir: d, kernel: k}.succeeds(t)
	if !strings.Contains(o.stderr, "netlink: interrupted; the pod is recorded without its interface") {
		t.Errorf("said %q", o.stderr)
	}
	if pods := records(t, d); len(pods) != 1 || pods[0].Cookie != 4105 || pods[0].Index != 0 || pods[0].HostIndex != 0 {
		t.Errorf("recorded %+v", pods)
	}
}

// A repeated ADD keeps the interface that the first one found, if it cannot be found now.
func TestAddAgain(t *testing.T) {
	c := call{command: "ADD", dir: newDir(t), kernel: newKernel()}
	c.succeeds(t)
	want := records(t, c.dir)[0].Link
	c.kernel.fails["find"] = errors.New("netlink: interrupted")
	if o := c.succeeds(t); strings.Contains(o.stderr, "without its interface") {
		t.Errorf("said %q", o.stderr)
	}
	if got := records(t, c.dir)[0].Link; !reflect.DeepEqual(got, want) {
		t.Errorf("recorded %+v, want %+v", got, want)
	}
	c.env = map[string]string{"CNI_NETNS": "/run/netns/red"} // the id of another pod by now
	c.succeeds(t)
	if got := records(t, c.dir)[0]; got.Index != 0 || got.Cookie != 4106 {
		t.Errorf("recorded %+v", got)
	}
}

// Values that runtimes leave out, or pass as null, are empty in the record.
func TestAddWithLittle(t *testing.T) {
	for _, rc := range []any{nil, raw("null"), raw(`{}`), raw(`{"bandwidth": null, "cgroupPath": null, "io.kubernetes.cri.pod-annotations": null}`)} {
		d := newDir(t)
		call{command: "ADD", dir: d, env: map[string]string{"CNI_ARGS": ""}, keys: map[string]any{"runtimeConfig": rc, "prevResult": raw(`{"ips": 5}`)}}.succeeds(t)
		p := records(t, d)[0]
		if p.Boot == "" || p.Uptime == 0 {
			t.Errorf("recorded %+v, without the time since the boot", p)
		}
		p.Added, p.Boot, p.Uptime = time.Time{}, "", 0
		if want := (pod.Pod{Network: "shop-net", Container: "c1", Interface: "eth0", NetNS: "/run/netns/blue", Cookie: 4105, Link: links["/run/netns/blue eth0"]}); !reflect.DeepEqual(p, want) {
			t.Errorf("recorded %+v, want %+v", p, want)
		}
	}
}

// The addresses in a record are those of its interface in the pod.
func TestAddressesOfRecord(t *testing.T) {
	const interfaces = `"interfaces": [{"name": "eth0"}, {"name": "eth0", "sandbox": "/run/netns/blue"}, {"name": "net1", "sandbox": "/run/netns/blue"}], `
	for ips, want := range map[string][]string{
		interfaces + `"ips": [{"address": "10.1.0.5/24", "interface": 1}, {"address": "fd00::5/64", "interface": 1}]`:  {"10.1.0.5/24", "fd00::5/64"},
		interfaces + `"ips": [{"address": "10.1.0.5/24", "interface": 0}, {"address": "10.1.0.6/24", "interface": 2}]`: nil,
		interfaces + `"ips": [{"address": "10.1.0.5/24", "interface": -1}, {"address": "10.1.0.6/24"}]`:                {"10.1.0.5/24", "10.1.0.6/24"},
		`"ips": [{"address": "10.1.0.5/24", "interface": 3}, {"version": "4"}]`:                                        {"10.1.0.5/24"},
		`"ips": [{"address": "10.1.0.5"}]`: nil,
		`"ips": null`:                      nil,
	} {
		d := newDir(t)
		call{command: "ADD", dir: d, keys: map[string]any{"prevResult": raw(`{"cniVersion": "1.1.0", ` + ips + `}`)}}.succeeds(t)
		var got []string
		for _, a := range records(t, d)[0].Addresses {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: recorded %q, want %q", ips, got, want)
		}
	}
}

// The library reads the same from the plugin's result as from the previous one, in every version,
// also if that one has no version, as old libraries wrote it.
func TestResultOfEveryVersion(t *testing.T) {
	for _, v := range versions {
		for _, prev := range []string{
			strings.Replace(prevResult, "VERSION", v, 1),
			strings.Replace(prevResult, ` "cniVersion": "VERSION", `, "", 1),
			strings.Replace(prevResult, "VERSION", "", 1),
		} {
			prev = strings.Replace(prev, "1e400", "1", 1) // the library reads all numbers
			o := call{command: "ADD", dir: newDir(t), keys: map[string]any{"cniVersion": v, "prevResult": raw(prev)}}.succeeds(t)
			got, err := version.NewResult(v, []byte(o.stdout))
			if err != nil {
				t.Fatalf("%s: %v: %s", v, err, o.stdout)
			}
			want, err := version.NewResult(v, []byte(strings.Replace(prevResult, "VERSION", v, 1)))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: result %+v, want %+v", v, got, want)
			}
			var written map[string]any
			if err := json.Unmarshal([]byte(o.stdout), &written); err != nil || written["cniVersion"] != v {
				t.Errorf("%s: %v: %s", v, err, o.stdout)
			}
		}
	}
}

// Every command in every version: those that a version does not have are refused, and errors have
// the version that was asked for.
func TestCommandsOfEveryVersion(t *testing.T) {
	d := newDir(t)
	for _, v := range append(slices.Clone(versions), "0.1.0", "0.2.0", "1.2.0", "2", "x") {
		for _, command := range []string{"ADD", "CHECK", "GC", "STATUS", "DEL", "DEL"} {
			c := call{command: command, dir: d, keys: map[string]any{"cniVersion": v, "cni.dev/valid-attachments": raw(`[{"containerID": "c1", "ifname": "eth0"}]`)}}
			at := slices.Index(versions, v)
			if at < 0 || at < slices.Index(versions, since[command]) {
				c.fails(t, codeVersion, fmt.Sprintf("%s of CNI version %q", command, v))
				continue
			}
			o := c.succeeds(t)
			if (o.stdout == "") != (command != "ADD") {
				t.Errorf("%s %s printed %q", v, command, o.stdout)
			}
			c.keys["timeout"] = 5
			o = c.run(t)
			if o.failure.Code != codeConfig || o.failure.Version != v {
				t.Errorf("%s %s: %s", v, command, o.stdout)
			}
		}
	}
	call{command: "ADD", dir: d, keys: map[string]any{"cniVersion": raw(`""`), "prevResult": nil}}.fails(t, codeConfig, "no cniVersion")
}

func TestVersion(t *testing.T) {
	for stdin, want := range map[string]string{
		`{"cniVersion": "1.0.0"}`: "1.0.0", `{"cniVersion": "0.2.0"}`: "0.2.0", `{"cniVersion": "1.1.0", "name": 5}`: "1.1.0", `{}`: "1.1.0", "junk": "1.1.0",
	} {
		o := call{command: "VERSION", stdin: stdin, env: map[string]string{"CNI_CONTAINERID": "", "CNI_IFNAME": "", "CNI_NETNS": ""}}.succeeds(t)
		info, err := (&version.PluginDecoder{}).Decode([]byte(o.stdout))
		var written versionDocument
		if err != nil || json.Unmarshal([]byte(o.stdout), &written) != nil || written.Version != want || !slices.Equal(info.SupportedVersions(), versions) {
			t.Errorf("%s: %s, %v", stdin, o.stdout, err)
		}
	}
}

func TestErrorsOfEnvironment(t *testing.T) {
	d := newDir(t)
	for _, c := range []struct {
		commands, variable, value, want string
	}{
		{"ADD DEL CHECK", "CNI_CONTAINERID", "", "CNI_CONTAINERID: the container id is empty"},
		{"ADD DEL CHECK", "CNI_CONTAINERID", "../x", "CNI_CONTAINERID"},
		{"ADD DEL CHECK", "CNI_CONTAINERID", "a/b", "CNI_CONTAINERID"},
		{"ADD DEL CHECK", "CNI_IFNAME", "", "CNI_IFNAME: the interface name is empty"},
		{"ADD DEL CHECK", "CNI_IFNAME", "../x", "CNI_IFNAME"},
		{"ADD DEL CHECK", "CNI_IFNAME", "sixteen-bytes-xx", "CNI_IFNAME"},
		{"ADD CHECK", "CNI_NETNS", "", "CNI_NETNS"},
		{"ADD CHECK", "CNI_NETNS", "blue", "CNI_NETNS"},
		{"ADD", "CNI_NETNS", "/run/netns/none", "CNI_NETNS: open /run/netns/none"},
		{"ADD", "CNI_NETNS", "/run/netns/host", "is the network namespace of the container runtime"},
		{"ADD", "CNI_ARGS", "K8S_POD_NAME", "CNI_ARGS"},
		{"ADD", "CNI_ARGS", "COLOUR=red", "COLOUR"},
		{"ADD", "CNI_ARGS", "COLOUR=red;IgnoreUnknown=0", "COLOUR"},
		{"ADD", "CNI_ARGS", "IgnoreUnknown=maybe", "IgnoreUnknown"},
		{"ADD", "CNI_ARGS", "K8S_POD_NAME=a\x1b[2J", "K8S_POD_NAME"},
		{"ADD", "CNI_ARGS", "K8S_POD_NAME=\xff", "K8S_POD_NAME"},
		{"ADD", "CNI_ARGS", "K8S_POD_NAMESPACE=" + strings.Repeat("x", 254), "K8S_POD_NAMESPACE"},
		{"ADD", "CNI_COMMAND", "", "CNI_COMMAND is not set"},
		{"ADD", "CNI_COMMAND", "add", "CNI_COMMAND"},
	} {
		for _, command := range strings.Fields(c.commands) {
			call{command: command, dir: d, env: map[string]string{c.variable: c.value}}.fails(t, codeEnvironment, c.want)
		}
	}
	if pods := records(t, d); len(pods) != 0 {
		t.Errorf("recorded %+v", pods)
	}
}

func TestErrorsOfConfiguration(t *testing.T) {
	d := newDir(t)
	for _, c := range []struct {
		keys map[string]any
		code code
		want string
	}{
		{map[string]any{"prevResult": nil}, codeConfig, "no prevResult, and no ipam"},
		{map[string]any{"prevResult": raw("null")}, codeConfig, "no prevResult"},
		{map[string]any{"prevResult": raw("[]")}, codeConfig, "prevResult is an array, want an object"},
		{map[string]any{"name": nil}, codeConfig, `name is ""`},
		{map[string]any{"name": "a/b"}, codeConfig, `name is "a/b"`},
		{map[string]any{"name": 5}, codeConfig, "name is a number, want a string"},
		{map[string]any{"dir": raw("{}")}, codeConfig, "dir is an object, want a string"},
		{map[string]any{"dir": "pods"}, codeConfig, `dir is "pods"`},
		{map[string]any{"socket": true}, codeConfig, "socket is true or false, want a string"},
		{map[string]any{"socket": "tcpilot.sock"}, codeConfig, `socket is "tcpilot.sock"`},
		{map[string]any{"timeout": 2}, codeConfig, "timeout is a number, want a string"},
		{map[string]any{"timeout": "2"}, codeConfig, `timeout is "2"`},
		{map[string]any{"timeout": "0s"}, codeConfig, `timeout is "0s"`},
		{map[string]any{"timeout": "-1s"}, codeConfig, `timeout is "-1s"`},
		{map[string]any{"timeout": "10001ms"}, codeConfig, "at most 10s"},
		{map[string]any{"runtimeConfig": raw(`"x"`)}, codeConfig, "runtimeConfig is a string, want an object"},
		{map[string]any{"runtimeConfig": raw(`{"bandwidth": 5}`)}, codeConfig, "runtimeConfig.bandwidth is a number, want an object"},
		{map[string]any{"runtimeConfig": raw(`{"bandwidth": {"EgressRate": "1M"}}`)}, codeConfig, "runtimeConfig.bandwidth.egressRate is a string, want a whole number"},
		{map[string]any{"runtimeConfig": raw(`{"bandwidth": {"IngressRate": -1}}`)}, codeConfig, "runtimeConfig.bandwidth.ingressRate is the number -1, want a whole number"},
		{map[string]any{"runtimeConfig": raw(`{"cgroupPath": []}`)}, codeConfig, "runtimeConfig.cgroupPath is an array, want a string"},
		{map[string]any{"runtimeConfig": raw(`{"io.kubernetes.cri.pod-annotations": [1]}`)}, codeConfig, "runtimeConfig.io.kubernetes.cri.pod-annotations is an array, want an object"},
		{map[string]any{"runtimeConfig": raw(`{"io.kubernetes.cri.pod-annotations": {"a": 1}}`)}, codeConfig, "runtimeConfig.io.kubernetes.cri.pod-annotations"},
		{map[string]any{"name": raw(`"a`)}, codeDecode, "decode network configuration"},
		{map[string]any{"dir": "/proc/none"}, codeIO, "write record of pod"},
	} {
		call{command: "ADD", dir: d, keys: c.keys}.fails(t, c.code, c.want)
	}
	for stdin, want := range map[string]code{"": codeDecode, "[]": codeConfig, "null": codeConfig, "7": codeConfig, "{} {}": codeDecode, strings.Repeat("[", 20000): codeDecode} {
		c := call{command: "ADD", stdin: stdin + " "}
		c.fails(t, want, "configuration")
	}
	call{command: "ADD", stdin: strings.Repeat(" ", maxConfig+1)}.fails(t, codeIO, "more than")
	if pods := records(t, d); len(pods) != 0 {
		t.Errorf("recorded %+v", pods)
	}
}

// DEL needs nothing but the attachment, and succeeds when everything is gone. What ADD would refuse
// does not prevent it.
func TestDel(t *testing.T) {
	d := newDir(t)
	bare := call{command: "DEL", dir: d, env: map[string]string{"CNI_NETNS": "", "CNI_ARGS": "?"},
		keys: map[string]any{"prevResult": nil, "runtimeConfig": raw("5"), "cni.dev/valid-attachments": raw("5")}}
	bare.succeeds(t) // without a directory
	call{command: "ADD", dir: d}.succeeds(t)
	call{command: "ADD", dir: d, env: map[string]string{"CNI_IFNAME": "net1"}}.succeeds(t)
	for range 2 {
		if o := bare.succeeds(t); o.stdout != "" {
			t.Errorf("printed %q", o.stdout)
		}
		if pods := records(t, d); len(pods) != 1 || pods[0].Interface != "net1" {
			t.Errorf("left %+v", pods)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	call{command: "DEL", dir: podrecord.Dir(file)}.fails(t, codeIO, "delete record of pod")
}

func TestCheck(t *testing.T) {
	d := newDir(t)
	check := call{command: "CHECK", dir: d}
	check.fails(t, codeNoRecord, "no record of container c1, interface eth0")
	call{command: "ADD", dir: d}.succeeds(t)
	check.succeeds(t)
	call{command: "CHECK", dir: d, keys: map[string]any{"prevResult": nil}}.fails(t, codeConfig, "no prevResult")
	call{command: "CHECK", dir: d, env: map[string]string{"CNI_NETNS": "/run/netns/red"}}.fails(t, codeOtherNetNS, "its cookie is 4105, that of /run/netns/red is 4106")
	call{command: "CHECK", dir: d, env: map[string]string{"CNI_NETNS": "/run/netns/none"}}.fails(t, codeEnvironment, "CNI_NETNS")
	if err := os.WriteFile(filepath.Join(string(d), "c1@eth0.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	check.fails(t, codeIO, "not a record of a pod")
}

// GC deletes what is not in the list, of its own network only, and goes on after errors.
func TestGC(t *testing.T) {
	d := newDir(t)
	add := func(network, container, iface string) {
		t.Helper()
		call{command: "ADD", dir: d, keys: map[string]any{"name": network}, env: map[string]string{"CNI_CONTAINERID": container, "CNI_IFNAME": iface}}.succeeds(t)
	}
	left := func(want ...string) {
		t.Helper()
		var got []string
		records, _, _ := d.List()
		for _, p := range records {
			got = append(got, p.Network+" "+p.Container+" "+p.Interface)
		}
		if !slices.Equal(got, want) {
			t.Errorf("left %q, want %q", got, want)
		}
	}
	gc := func(valid any) call {
		return call{command: "GC", dir: d, keys: map[string]any{"prevResult": nil, "cni.dev/valid-attachments": valid},
			env: map[string]string{"CNI_CONTAINERID": "", "CNI_IFNAME": "", "CNI_NETNS": "", "CNI_ARGS": ""}}
	}
	gc(raw("[]")).succeeds(t) // without a directory
	add("shop-net", "a", "eth0")
	add("shop-net", "a", "net1")
	add("shop-net", "b", "eth0")
	add("other", "z", "eth0")
	gc(nil).fails(t, codeConfig, "cni.dev/valid-attachments")
	gc(raw(`{}`)).fails(t, codeConfig, "cni.dev/valid-attachments is an object, want an array")
	gc(raw(`[5]`)).fails(t, codeConfig, "cni.dev/valid-attachments")
	left("shop-net a eth0", "shop-net a net1", "shop-net b eth0", "other z eth0")
	gc(raw(`[{"containerID": "a", "ifname": "net1"}, {"containerID": "../z", "ifname": ""}, {"containerID": "b", "ifname": "eth0", "more": 1}]`)).succeeds(t)
	left("shop-net a net1", "shop-net b eth0", "other z eth0")
	bad := filepath.Join(string(d), "a@bad.json")
	if err := os.WriteFile(bad, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	gc(raw("null")).fails(t, codeIO, bad)
	left("other z eth0")
}

func TestStatus(t *testing.T) {
	d := newDir(t)
	mistyped := call{command: "STATUS", dir: d, keys: map[string]any{"dirr": "/x", "DIR": d, "isGateway": true}}
	if o := mistyped.succeeds(t); !strings.Contains(o.stderr, `STATUS: the network configuration's key "dirr" is unknown, did you mean "dir"?`) || strings.Count(o.stderr, "\n") != 1 {
		t.Errorf("standard error: %q", o.stderr)
	}
	c := call{command: "STATUS", dir: d, keys: map[string]any{"prevResult": nil}, env: map[string]string{"CNI_CONTAINERID": "", "CNI_IFNAME": "", "CNI_NETNS": "", "CNI_ARGS": ""}}
	if o := c.succeeds(t); o.stdout != "" || o.stderr != "" { // the daemon is down
		t.Errorf("printed %q, %q", o.stdout, o.stderr)
	}
	c.dir = "/proc/none"
	c.fails(t, codeUnavailable, "/proc/none")
}

// daemon answers on a socket in the directory's parent until the test ends.
func daemon(t *testing.T, d podrecord.Dir, answer http.HandlerFunc) (socket string) {
	t.Helper()
	socket = filepath.Join(filepath.Dir(string(d)), "tcpilot.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/pods/sync", answer)
	s := &http.Server{Handler: mux}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return socket
}

// The daemon is asked after a change of the records, and only then.
func TestDaemonIsAsked(t *testing.T) {
	d := newDir(t)
	var seen []string
	var mu sync.Mutex
	note := func(what any) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprint(what))
	}
	socket := daemon(t, d, func(w http.ResponseWriter, r *http.Request) {
		note(len(records(t, d)))
		io.WriteString(w, "{}")
	})
	for _, command := range []string{"ADD", "CHECK", "STATUS", "DEL", "DEL", "ADD", "GC", "GC"} {
		o := call{command: command, dir: d, keys: map[string]any{"socket": socket, "cni.dev/valid-attachments": raw("[]")}}.succeeds(t)
		if o.stderr != "" {
			t.Errorf("%s wrote %q", command, o.stderr)
		}
		note(command)
	}
	if want := strings.Fields("1 ADD CHECK STATUS 0 DEL DEL 1 ADD 0 GC GC"); !slices.Equal(seen, want) {
		t.Errorf("asked %q, want %q", seen, want)
	}
}

// Whatever the daemon does, ADD and DEL succeed in time, and print one line that says what it means.
func TestDaemonFails(t *testing.T) {
	hang := make(chan struct{})
	var answers atomic.Value
	d := newDir(t)
	socket := daemon(t, d, func(w http.ResponseWriter, r *http.Request) { answers.Load().(http.HandlerFunc)(w, r) })
	t.Cleanup(func() { close(hang) })
	stale := filepath.Join(t.TempDir(), "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	raw := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := http.NewResponseController(w).Hijack()
			io.WriteString(c, text)
			c.Close()
		}
	}
	for _, c := range []struct {
		socket string
		answer http.HandlerFunc
		want   string
	}{
		{filepath.Join(string(d), "none.sock"), nil, "tcpilot is not running (no socket at "},
		{stale, nil, "tcpilot is not running (nobody listens on "},
		{file, nil, "tcpilot is not running (nobody listens on "},
		{"/" + strings.Repeat("x", 200), nil, "invalid argument"},
		{socket, func(http.ResponseWriter, *http.Request) { <-hang }, "has not answered in time"},
		{socket, func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); <-hang }, "has not answered in time"},
		{socket, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			io.WriteString(w, `{"error": "no map"}`)
		}, "has not read the records: no map"},
		{socket, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "403 Forbidden"},
		{socket, http.NotFound, "404 Not Found"},
		{socket, raw(""), "not HTTP"},
		{socket, raw("SSH-2.0\r\n\r\n"), "not HTTP"},
		{socket, raw("HTTP/1.1 "), "has not read the records"},
		{socket, raw("HTTP/1.1 200 OK\r\n\r\n"), ""},
		{socket, raw("HTTP/1.1 204 " + strings.Repeat("x", 1<<20)), ""},
	} {
		if c.answer != nil {
			answers.Store(c.answer)
		}
		for _, command := range []string{"ADD", "DEL"} {
			timeout := "4s"
			if c.want == "has not answered in time" {
				timeout = "1s"
			}
			start := time.Now()
			o := call{command: command, dir: d, keys: map[string]any{"socket": c.socket, "timeout": timeout}}.succeeds(t)
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("%s: %s took %v", c.want, command, took)
			}
			pod := command + " pod shop/web-1: "
			if !strings.Contains(o.stderr, c.want) || c.want != "" && (!strings.Contains(o.stderr, pod) || strings.Count(o.stderr, "\n") != 1) || c.want == "" && o.stderr != "" {
				t.Errorf("%s wrote %q, want %q", command, o.stderr, c.want)
			}
			if want := map[string]int{"ADD": 1}[command]; len(records(t, d)) != want {
				t.Errorf("%s: %d records", command, len(records(t, d)))
			}
		}
	}
}

type blocked struct {
	kernel
	until chan struct{}
}

func (b blocked) Cookie(string) (uint64, error) { <-b.until; return 0, errors.New("end of test") }

// A command ends within its timeout, whatever blocks.
func TestTimeout(t *testing.T) {
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	var stdout, stderr bytes.Buffer
	c := call{command: "ADD", dir: newDir(t), keys: map[string]any{"timeout": "50ms"}}
	p := c.plugin(&stdout, &stderr)
	p.kernel = blocked{p.kernel, never}
	var f failure
	if exit := p.run(); exit != 1 || json.Unmarshal(stdout.Bytes(), &f) != nil || f.Code != codeTryAgain || f.Message != "ADD did not finish within 50ms" {
		t.Errorf("exit %d, %s", exit, &stdout)
	}
	for command, want := range map[string]string{"ADD": `"code":5,"msg":"the network configuration did not arrive`, "VERSION": `"supportedVersions"`} {
		stdout.Reset()
		r, w := io.Pipe() // says nothing
		p := call{command: command}.plugin(&stdout, &stderr)
		p.Stdin, p.patience = r, 50*time.Millisecond
		if p.run(); !strings.Contains(stdout.String(), want) {
			t.Errorf("%s: %s", command, &stdout)
		}
		w.Close()
	}
}

func TestDefaultsAreTheDaemons(t *testing.T) {
	c, err := parseConfig([]byte(`{"cniVersion": "1.1.0", "name": "n"}`))
	if err != nil {
		t.Fatal(err)
	}
	if d := daemonconfig.Default(); c.Socket != d.Socket.Path || c.Dir != podrecord.Dir(d.Pods.Dir) || c.timeout != time.Second {
		t.Errorf("socket %s, dir %s, timeout %v; the daemon has socket %s and pods.dir %s", c.Socket, c.Dir, c.timeout, d.Socket.Path, d.Pods.Dir)
	}
}

// The main plugin has more time for its work, but not to wait for the daemon, unless the configuration says so.
func TestTimeouts(t *testing.T) {
	for keys, want := range map[string][2]time.Duration{
		``: {time.Second, time.Second}, `, "timeout": "3s"`: {3 * time.Second, 3 * time.Second},
		`, "ipam": {}`: {10 * time.Second, time.Second}, `, "ipam": {}, "timeout": "3s"`: {3 * time.Second, 3 * time.Second},
	} {
		c, err := parseConfig([]byte(`{"cniVersion": "1.1.0", "name": "n"` + keys + `}`))
		if got := [2]time.Duration{c.timeout, c.wait}; err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", keys, got, err, want)
		}
	}
}

// The codes are the library's where it has them.
func TestCodes(t *testing.T) {
	for c, want := range map[code]uint{codeVersion: types.ErrIncompatibleCNIVersion, codeEnvironment: types.ErrInvalidEnvironmentVariables, codeIO: types.ErrIOFailure,
		codeDecode: types.ErrDecodingFailure, codeConfig: types.ErrInvalidNetworkConfig, codeTryAgain: types.ErrTryAgainLater} {
		if uint(c) != want {
			t.Errorf("%d, want %d", c, want)
		}
	}
}
