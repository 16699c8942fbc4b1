package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podnet"
)

// fakeIPAM gives the addresses of a result, and remembers which attachments have them.
type fakeIPAM struct {
	result string
	held   map[pod.Key]bool
	calls  []string
	conf   string           // of the last call
	fails  map[string]error // by command
	slow   time.Duration
}

func newIPAM() *fakeIPAM {
	return &fakeIPAM{held: map[pod.Key]bool{}, fails: map[string]error{}, result: `{"cniVersion": "1.1.0",
		"ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00::5/64"}], "dns": {"nameservers": ["10.0.0.10"]}}`}
}

func (i *fakeIPAM) execute(command, plugin string, conf []byte, k pod.Key, netns string) (types.Result, error) {
	if i == nil {
		return nil, errors.New("there is no IPAM plugin in this test")
	}
	time.Sleep(i.slow)
	i.calls = append(i.calls, strings.TrimSpace(fmt.Sprintln(command, plugin, k.Container, netns)))
	i.conf = string(conf)
	if err := i.fails[command]; err != nil {
		return nil, err
	}
	switch command {
	case "ADD":
		i.held[k] = true
		return version.NewResult("1.1.0", []byte(i.result))
	case "DEL":
		delete(i.held, k)
	}
	return nil, nil
}

// main is a call of the main plugin.
func mainCall(t *testing.T, command string, keys map[string]any) call {
	all := map[string]any{"ipam": raw(`{"type": "host-local", "subnet": "10.1.0.0/24"}`)}
	if command == "ADD" {
		all["prevResult"] = nil
	}
	maps.Copy(all, keys)
	return call{command: command, dir: newDir(t), keys: all, kernel: newKernel(), ipam: newIPAM(), env: map[string]string{"CNI_IFNAME": "eth1"}}
}

var device = podnet.HostName(pod.Key{Container: "c1", Interface: "eth1"})

// ADD makes the interface in order, records it, and prints a complete result in each version.
func TestMainAdd(t *testing.T) {
	for _, v := range versions {
		c := mainCall(t, "ADD", map[string]any{"cniVersion": v, "ipMasq": true, "ipMasqExcept": raw(`["10.0.0.0/8", "fd00::/8"]`)})
		o := c.succeeds(t)
		if want := []string{"forward true true", "make " + device, "masquerade shop-net " + device + " [10.0.0.0/8 fd00::/8]"}; !slices.Equal(c.kernel.calls, want) {
			t.Errorf("%s: %q, want %q", v, c.kernel.calls, want)
		}
		if want := []string{"ADD host-local c1 /run/netns/blue"}; !slices.Equal(c.ipam.calls, want) {
			t.Errorf("%s: %q, want %q", v, c.ipam.calls, want)
		}
		addresses := []netip.Prefix{netip.MustParsePrefix("10.1.0.5/32"), netip.MustParsePrefix("fd00::5/128")}
		p := records(t, c.dir)[0]
		if want := (pod.Link{Device: pod.Veth, Index: 2, HostIndex: 18, Addresses: addresses}); !p.Made || !reflect.DeepEqual(p.Link, want) || p.Name != "web-1" || !p.Masqueraded ||
			fmt.Sprint(p.MasqueradeExcept) != "[10.0.0.0/8 fd00::/8]" {
			t.Errorf("%s: recorded %+v, want %+v", v, p, want)
		}
		printed, err := version.NewResult(v, []byte(o.stdout))
		if err != nil {
			t.Fatalf("%s: %v: %s", v, err, o.stdout)
		}
		r, err := types100.NewResultFromResult(printed)
		if err != nil || printed.Version() != v {
			t.Fatalf("%s: version %s, %v", v, printed.Version(), err)
		}
		var text []string
		for _, i := range r.Interfaces {
			text = append(text, fmt.Sprint(i.Name, " ", i.Mac, " ", i.Sandbox))
		}
		for _, ip := range r.IPs {
			text = append(text, fmt.Sprint(ip.Address.String(), " ", ip.Gateway, " ", *ip.Interface))
		}
		for _, r := range r.Routes {
			text = append(text, fmt.Sprint(r.Dst.String(), " ", r.GW))
		}
		text = append(text, r.DNS.Nameservers...)
		want := []string{device + " 02:00:00:00:00:02 ", "eth1 02:00:00:00:00:01 /run/netns/blue", "10.1.0.5/32 169.254.1.1 1", "fd00::5/128 fe80::1 1",
			"0.0.0.0/0 169.254.1.1", "::/0 fe80::1", "10.0.0.10"}
		if !slices.Equal(text, want) {
			t.Errorf("%s: result %q, want %q", v, text, want)
		}
		if v == "1.1.0" && (r.Interfaces[0].Mtu != 9000 || r.Interfaces[1].Mtu != 9000) {
			t.Errorf("MTUs %+v", r.Interfaces)
		}
	}
}

// The configuration and the annotation decide on the device, the MTU, the routes and DNS.
func TestMainKeys(t *testing.T) {
	for _, c := range []struct {
		keys       string
		annotation string
		want       []podnet.Mode
		mtu        int
	}{
		{`{}`, "", []podnet.Mode{podnet.Netkit, podnet.Veth}, 9000},
		{`{"device": "auto", "mtu": 1400}`, "", []podnet.Mode{podnet.Netkit, podnet.Veth}, 1400},
		{`{"device": "netkit", "mtu": 0}`, "", []podnet.Mode{podnet.Netkit}, 9000},
		{`{"device": "netkit-l2", "mtu": 1280}`, "", []podnet.Mode{podnet.NetkitL2}, 1280},
		{`{"device": "netkit"}`, "veth", []podnet.Mode{podnet.Veth}, 9000},
		{`{"device": "veth"}`, "netkit-l2", []podnet.Mode{podnet.NetkitL2}, 9000},
	} {
		keys := map[string]any{}
		if err := json.Unmarshal([]byte(c.keys), &keys); err != nil {
			t.Fatal(err)
		}
		if c.annotation != "" {
			keys["runtimeConfig"] = map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{deviceAnnotation: c.annotation}}
		}
		add := mainCall(t, "ADD", keys)
		add.succeeds(t)
		if got := add.kernel.pair; !slices.Equal(got.Modes, c.want) || got.MTU != c.mtu || got.NetNS != "/run/netns/blue" || got.Name != "eth1" {
			t.Errorf("%s %s: %+v", c.keys, c.annotation, got)
		}
		if slices.ContainsFunc(add.kernel.calls, func(s string) bool { return strings.HasPrefix(s, "masq") }) {
			t.Errorf("%s: masqueraded", c.keys)
		}
	}
	c := mainCall(t, "ADD", map[string]any{"dns": raw(`{"nameservers": ["10.0.0.53"]}`)})
	c.ipam.result = `{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/24"}], "routes": [{"dst": "10.9.1.7/16", "gw": "10.1.0.1", "mtu": 1300, "priority": 5, "table": 7}, {"dst": "fd00::/8"}]}`
	o := c.succeeds(t)
	if want := []podnet.Route{{Dst: netip.MustParsePrefix("10.9.0.0/16"), MTU: 1300, Priority: 5, Table: 7}}; !slices.Equal(c.kernel.pair.Routes, want) {
		t.Errorf("routes %+v, want %+v", c.kernel.pair.Routes, want)
	}
	if !strings.Contains(o.stdout, `"nameservers":["10.0.0.53"]`) || !strings.Contains(o.stdout, `{"dst":"10.9.0.0/16","gw":"169.254.1.1","mtu":1300,"priority":5,"table":7}`) {
		t.Errorf("result %s", o.stdout)
	}
}

// An empty dns, which libraries write into configurations, is none.
func TestMainEmptyDNS(t *testing.T) {
	for _, dns := range []string{`{}`, `null`, `{"nameservers": []}`} {
		if o := mainCall(t, "ADD", map[string]any{"dns": raw(dns)}).succeeds(t); !strings.Contains(o.stdout, `"nameservers":["10.0.0.10"]`) {
			t.Errorf("%s: result %s", dns, o.stdout)
		}
	}
}

// If the MTU of the default route's device is too small, the error does not blame the configuration.
func TestMainSmallMTU(t *testing.T) {
	c := mainCall(t, "ADD", nil)
	c.kernel.mtu = 1279
	c.fails(t, codeConfig, "the MTU of the default route's device is 1279: IPv6 needs at least 1280")
}

// A chained tcpilot-cni behind the main one completes its record, and keeps what the main one needs to remove
// the interface, also if ADD or DEL of the chained one is repeated.
func TestMainBehindItself(t *testing.T) {
	add := mainCall(t, "ADD", map[string]any{"ipMasq": true, "runtimeConfig": raw(`{"cgroupPath": "/kubepods/podf5", "bandwidth": {"ingressRate": 1000}}`)})
	prev := add.succeeds(t).stdout
	want := records(t, add.dir)[0]
	behind := add
	behind.keys = map[string]any{"prevResult": raw(prev), "runtimeConfig": raw(`{"io.kubernetes.cri.pod-annotations": {"tcpilot.io/profile": "bulk"}}`)}
	behind.kernel.fails["find"] = errors.New("netlink: interrupted")
	want.Chained, want.Annotations = true, map[string]string{"tcpilot.io/profile": "bulk"}
	for range 2 {
		if o := behind.succeeds(t); strings.Contains(o.stderr, "without its interface") {
			t.Errorf("said %q", o.stderr)
		}
		behind.keys["runtimeConfig"] = nil
		if got := records(t, add.dir)[0]; !reflect.DeepEqual(got, want) {
			t.Errorf("recorded %+v, want %+v", got, want)
		}
	}
	behind.command, add.kernel.calls = "DEL", nil
	for range 2 {
		behind.succeeds(t)
		if got := records(t, add.dir); len(got) != 1 || !reflect.DeepEqual(got[0], want) || len(add.kernel.calls) != 0 {
			t.Errorf("left %+v, want %+v; calls %q", got, want, add.kernel.calls)
		}
	}
	gc := add
	gc.command, gc.keys = "GC", map[string]any{"prevResult": nil, "ipam": add.keys["ipam"], "cni.dev/valid-attachments": raw("[]")}
	gc.succeeds(t)
	if len(add.kernel.made) != 0 || len(add.ipam.held) != 0 || len(records(t, add.dir)) != 0 {
		t.Errorf("left %v, %v, %d records", add.kernel.made, add.ipam.held, len(records(t, add.dir)))
	}
}

// The record of an interface that the main plugin of one network made stays that network's.
func TestMainRecordKeepsItsNetwork(t *testing.T) {
	add := mainCall(t, "ADD", nil)
	add.succeeds(t)
	want := records(t, add.dir)[0]
	other := call{command: "ADD", dir: add.dir, kernel: add.kernel, env: add.env, keys: map[string]any{"name": "other"}}
	other.succeeds(t)
	if got := records(t, add.dir)[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("recorded %+v, want %+v", got, want)
	}
	// The pod is gone, and the next one has its id.
	other.env = map[string]string{"CNI_IFNAME": "eth1", "CNI_NETNS": "/run/netns/red"}
	other.succeeds(t)
	if got := records(t, add.dir)[0]; !got.Made || got.Network != "shop-net" || got.Cookie != 4106 || got.Index != 0 {
		t.Errorf("recorded %+v", got)
	}
}

// A mistake in a key prevents ADD before anything is made. If all pods have it, STATUS reports it as well.
func TestMainErrorsOfConfiguration(t *testing.T) {
	for _, c := range []struct {
		keys map[string]any
		code code
		want string
	}{
		{map[string]any{"ipam": raw(`{}`)}, codeConfig, `ipam.type is ""`},
		{map[string]any{"ipam": raw(`"host-local"`)}, codeConfig, "ipam is a string, want an object"},
		{map[string]any{"ipam": raw(`{"type": 5}`)}, codeConfig, "ipam.type is a number, want a string"},
		{map[string]any{"ipam": raw(`{"type": "../x"}`)}, codeConfig, `ipam.type is "../x"`},
		{map[string]any{"prevResult": raw(`{}`)}, codeConfig, "has to be the first plugin"},
		{map[string]any{"device": "tap"}, codeConfig, `the network configuration's device is "tap": it must be one of auto, netkit, netkit-l2, veth`},
		{map[string]any{"device": 5}, codeConfig, "device is a number, want a string"},
		{map[string]any{"mtu": 67}, codeConfig, "mtu is 67"},
		{map[string]any{"mtu": 65536}, codeConfig, "mtu is 65536"},
		{map[string]any{"mtu": 1279}, codeConfig, "IPv6 needs at least 1280"},
		{map[string]any{"mtu": "1500"}, codeConfig, "mtu is a string, want a whole number"},
		{map[string]any{"ipMasq": 1}, codeConfig, "ipMasq is a number, want true or false"},
		{map[string]any{"ipMasqExcept": raw(`["10.0.0.0"]`)}, codeConfig, `ipMasqExcept has "10.0.0.0"`},
		{map[string]any{"ipMasqExcept": "10.0.0.0/8"}, codeConfig, "ipMasqExcept is a string, want an array"},
		{map[string]any{"ipMasq": true, "name": strings.Repeat("n", 201)}, codeConfig, "name has 201 bytes"},
		{map[string]any{"runtimeConfig": raw(`{"io.kubernetes.cri.pod-annotations": {"tcpilot.io/device": ""}}`)}, codeConfig, `the pod's annotation tcpilot.io/device is ""`},
	} {
		add := mainCall(t, "ADD", c.keys)
		add.fails(t, c.code, c.want)
		if len(add.kernel.made) != 0 || len(add.ipam.held) != 0 || len(records(t, add.dir)) != 0 {
			t.Errorf("%v: left %v, %v, %v", c.keys, add.kernel.made, add.ipam.held, records(t, add.dir))
		}
		if c.keys["prevResult"] != nil || c.keys["runtimeConfig"] != nil || c.keys["mtu"] == 1279 {
			continue // the runtime passes it to ADD alone, or an address is needed
		}
		status := mainCall(t, "STATUS", map[string]any{"prevResult": nil})
		maps.Copy(status.keys, c.keys)
		if status.fails(t, c.code, c.want); len(status.ipam.calls) != 0 {
			t.Errorf("%v: %q", c.keys, status.ipam.calls)
		}
	}
	// The interface of an ADD before is left alone.
	add := mainCall(t, "ADD", nil)
	add.env = nil
	add.fails(t, codeExists, "the interface exists: eth0")
	if len(add.ipam.calls) != 0 || len(add.kernel.calls) != 0 {
		t.Errorf("%q, %q", add.ipam.calls, add.kernel.calls)
	}
}

// Whichever step fails, ADD undoes all those before, and says what failed, and what it could not undo.
func TestMainAddIsUndone(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		kernel, ipam map[string]error
		result       string
		code         code
		want         string
		left         bool // the address, because it could not be released, and with it the record
	}{
		{ipam: map[string]error{"ADD": types.NewError(types.ErrTryAgainLater, "full", "later")}, code: codeTryAgain, want: "ADD of IPAM plugin host-local: full"},
		{ipam: map[string]error{"ADD": boom}, code: codeIO, want: "ADD of IPAM plugin host-local: boom"},
		{result: `{"cniVersion": "1.1.0"}`, code: codeIO, want: "gave no address"},
		{kernel: map[string]error{"forward": boom}, code: codeIO, want: "boom"},
		{kernel: map[string]error{"mtu": boom}, code: codeIO, want: "boom"},
		{kernel: map[string]error{"make": fmt.Errorf("%w: tcp1", podnet.ErrExists)}, code: codeExists, want: "the interface exists: tcp1"},
		{kernel: map[string]error{"make": fmt.Errorf("%w: netkit", podnet.ErrNoDevice)}, code: codeNoDevice, want: "the kernel has no such device: netkit"},
		{kernel: map[string]error{"make": boom}, code: codeIO, want: "boom"},
		{kernel: map[string]error{"masquerade": boom}, code: codeIO, want: "boom"},
		{kernel: map[string]error{"masquerade": boom}, ipam: map[string]error{"DEL": errors.New("disk")}, code: codeIO, want: "boom", left: true},
	} {
		add := mainCall(t, "ADD", map[string]any{"ipMasq": true})
		maps.Copy(add.kernel.fails, c.kernel)
		maps.Copy(add.ipam.fails, c.ipam)
		if c.result != "" {
			add.ipam.result = c.result
		}
		o := add.run(t)
		if o.failure.Code != c.code || !strings.Contains(o.failure.Message, c.want) {
			t.Errorf("exit %d, %s; want code %d, %q", o.exit, o.stdout, c.code, c.want)
		}
		if len(add.kernel.made) != 0 || len(add.ipam.held) > 0 != c.left || len(records(t, add.dir)) > 0 != c.left {
			t.Errorf("%s: left %v, %v, %v", o.stdout, add.kernel.made, add.ipam.held, records(t, add.dir))
		}
		if at := len(add.ipam.calls) - 1; add.ipam.calls[at] != "DEL host-local c1 /run/netns/blue" {
			t.Errorf("%s: %q", o.stdout, add.ipam.calls)
		}
		if c.left != strings.Contains(o.failure.Details, "undo: DEL of IPAM plugin host-local: disk") {
			t.Errorf("details %q", o.failure.Details)
		}
	}
}

// An interface that ADD cannot remove keeps its address and its record, by which DEL finds both.
func TestMainAddCannotBeUndone(t *testing.T) {
	for _, fails := range []string{"make", "masquerade"} {
		add := mainCall(t, "ADD", map[string]any{"ipMasq": true})
		add.kernel.made[device] = fails == "make" // Make has not undone what it did
		add.kernel.fails[fails], add.kernel.fails["remove"] = errors.New("boom"), errors.New("stuck")
		add.kernel.free = true
		o := add.run(t)
		if o.failure.Code != codeIO || o.failure.Message != "boom" || o.failure.Details != "undo: stuck" {
			t.Errorf("%s: %s", fails, o.stdout)
		}
		if !add.kernel.made[device] || len(add.ipam.held) != 1 || len(records(t, add.dir)) != 1 {
			t.Errorf("%s: left %v, %v, %d records", fails, add.kernel.made, add.ipam.held, len(records(t, add.dir)))
		}
		delete(add.kernel.fails, "remove")
		del := add
		del.command, del.keys = "DEL", map[string]any{"prevResult": nil, "ipam": add.keys["ipam"]}
		del.succeeds(t)
		if len(add.kernel.made) != 0 || len(add.ipam.held) != 0 || len(records(t, add.dir)) != 0 {
			t.Errorf("%s: DEL left %v, %v, %d records", fails, add.kernel.made, add.ipam.held, len(records(t, add.dir)))
		}
	}
}

// An IPAM plugin goes on when the ADD that started it is killed. DEL waits for it: otherwise the address would be given
// after its release.
func TestMainDelWaitsForTheDelegateOfADD(t *testing.T) {
	add := mainCall(t, "ADD", nil)
	add.succeeds(t)
	release, err := add.dir.Hold(records(t, add.dir)[0].Key(), 0) // as such a plugin does
	if err != nil {
		t.Fatal(err)
	}
	const runs = 200 * time.Millisecond
	begun := time.Now()
	time.AfterFunc(runs, release)
	del := add
	del.command, del.keys = "DEL", map[string]any{"prevResult": nil, "ipam": add.keys["ipam"]}
	del.succeeds(t)
	if took := time.Since(begun); took < runs || len(add.ipam.held) != 0 || len(records(t, add.dir)) != 0 {
		t.Errorf("after %v, %v is held, and there are the records %v", took, add.ipam.held, records(t, add.dir))
	}
}

// DEL releases the address only if the interface is gone, and deletes the record only if nothing else is left. It
// needs nothing but the attachment.
func TestMainDel(t *testing.T) {
	add := mainCall(t, "ADD", map[string]any{"ipMasq": true})
	add.succeeds(t)
	del := add
	del.command, del.keys = "DEL", map[string]any{"prevResult": nil, "ipam": add.keys["ipam"], "mtu": "wrong", "ipMasq": 7}
	del.env = map[string]string{"CNI_IFNAME": "eth1", "CNI_NETNS": ""}
	for _, what := range []string{"remove", "unmasquerade"} {
		add.kernel.fails[what] = errors.New("boom")
		del.fails(t, codeIO, "boom")
		delete(add.kernel.fails, what)
		if len(records(t, add.dir)) != 1 {
			t.Errorf("%s failed: no record is left", what)
		}
		if held := len(add.ipam.held) != 0; held != (what == "remove") || held != add.kernel.made[device] {
			t.Errorf("%s failed: the address is held: %v; left %v", what, held, add.kernel.made)
		}
	}
	add.ipam.fails["DEL"] = types.NewError(types.ErrTryAgainLater, "locked", "")
	del.fails(t, codeTryAgain, "DEL of IPAM plugin host-local: locked")
	if len(add.kernel.made) != 0 || len(records(t, add.dir)) != 1 {
		t.Errorf("left %v, %d records", add.kernel.made, len(records(t, add.dir)))
	}
	delete(add.ipam.fails, "DEL")
	add.kernel.calls, add.ipam.calls = add.kernel.calls[2:3], nil // masquerade
	for range 2 {
		del.succeeds(t)
		if want := []string{"remove " + device, "unmasquerade shop-net [" + device + "]"}; !slices.Equal(add.kernel.calls[1:], want) {
			t.Errorf("%q, want %q", add.kernel.calls[1:], want)
		}
		if want := []string{"DEL host-local c1"}; !slices.Equal(add.ipam.calls, want) || len(records(t, add.dir)) != 0 {
			t.Errorf("%q, want %q; records %v", add.ipam.calls, want, records(t, add.dir))
		}
		add.kernel.calls, add.ipam.calls = add.kernel.calls[:1], nil
	}
	// The configuration has become wrong while the pod ran: its address cannot be released.
	add.succeeds(t)
	del.keys = map[string]any{"prevResult": nil, "ipam": raw("{}")}
	del.fails(t, codeConfig, `ipam.type is ""`)
	del.keys["ipam"] = add.keys["ipam"]
	del.succeeds(t)
	del.keys["ipam"] = raw("{}")
	del.succeeds(t)
	// The configuration has become that of a chained plugin while the pod ran.
	add.succeeds(t)
	del.keys = map[string]any{"prevResult": nil}
	del.succeeds(t)
	if len(add.kernel.made) != 0 || len(records(t, add.dir)) != 0 {
		t.Errorf("left %v, %d records", add.kernel.made, len(records(t, add.dir)))
	}
}

// DEL of one network, after its ADD found the interface of another one, leaves everything of the other alone, and
// releases the address that its own IPAM plugin may have given.
func TestMainDelOfAnotherNetwork(t *testing.T) {
	add := mainCall(t, "ADD", map[string]any{"ipMasq": true})
	add.succeeds(t)
	before := records(t, add.dir)
	other := add
	other.keys = map[string]any{"name": "other", "prevResult": nil, "ipam": raw(`{"type": "other-ipam"}`)}
	other.fails(t, codeExists, "the interface exists: eth1")
	add.kernel.calls, add.ipam.calls = nil, nil
	other.command = "DEL"
	for _, ipam := range []any{other.keys["ipam"], raw("{}"), nil} { // one that ADD refuses, and that of a chained plugin
		other.keys["ipam"] = ipam
		other.succeeds(t)
	}
	if after := records(t, add.dir); !reflect.DeepEqual(after, before) || !add.kernel.made[device] || len(add.kernel.calls) != 0 {
		t.Errorf("left %+v, %v; calls %q", after, add.kernel.made, add.kernel.calls)
	}
	if want := []string{"DEL other-ipam c1 /run/netns/blue"}; !slices.Equal(add.ipam.calls, want) {
		t.Errorf("%q, want %q", add.ipam.calls, want)
	}
	other.keys["ipam"] = raw(`{"type": "other-ipam"}`)
	add.ipam.fails["DEL"] = errors.New("disk")
	other.fails(t, codeIO, "DEL of IPAM plugin other-ipam: disk")
	delete(add.ipam.fails, "DEL")
	// Early records have no network: they are of any.
	before[0].Network = ""
	if err := add.dir.Put(&before[0]); err != nil {
		t.Fatal(err)
	}
	other.succeeds(t)
	if len(add.kernel.made) != 0 || len(records(t, add.dir)) != 0 {
		t.Errorf("left %v, %d records", add.kernel.made, len(records(t, add.dir)))
	}
}

func TestMainCheck(t *testing.T) {
	add := mainCall(t, "ADD", nil)
	prev := add.succeeds(t).stdout
	check := add
	check.command, check.keys = "CHECK", map[string]any{"prevResult": raw(prev), "ipam": add.keys["ipam"]}
	add.kernel.calls = nil
	check.succeeds(t)
	if want := []string{"check " + device + " 18 [10.1.0.5 fd00::5] [{0.0.0.0/0 0 0 0 0} {::/0 0 0 0 0}]"}; !slices.Equal(add.kernel.calls, want) {
		t.Errorf("%q, want %q", add.kernel.calls, want)
	}
	// Routes of a table of their own are looked for there.
	check.keys["prevResult"] = raw(strings.Replace(prev, `"gw":"169.254.1.1"`, `"gw":"169.254.1.1","table":7`, 1))
	add.kernel.calls = nil
	check.succeeds(t)
	if want := "[{0.0.0.0/0 0 0 0 7} {::/0 0 0 0 0}]"; !strings.HasSuffix(add.kernel.calls[0], want) {
		t.Errorf("%q, want %q", add.kernel.calls, want)
	}
	check.keys["prevResult"] = nil
	check.fails(t, codeConfig, "no prevResult: CHECK needs the result of ADD")
	// A route that another plugin has changed is not this one's.
	check.keys["prevResult"] = raw(strings.Replace(prev, `"gw":"169.254.1.1"`, `"gw":"10.1.0.9"`, 1))
	add.kernel.calls = nil
	check.succeeds(t)
	if want := "[{::/0 0 0 0 0}]"; !strings.HasSuffix(add.kernel.calls[0], want) {
		t.Errorf("%q, want %q", add.kernel.calls, want)
	}
	add.kernel.fails["check"] = errors.New("no address")
	check.fails(t, codeChanged, "no address")
	add.ipam.fails["CHECK"] = errors.New("not allocated")
	check.fails(t, codeIO, "CHECK of IPAM plugin host-local: not allocated")
}

// CHECK looks at the rules that ADD made, whatever the configuration says of masquerading by then.
func TestMainCheckMasquerade(t *testing.T) {
	for _, then := range []bool{true, false} {
		for _, now := range []bool{true, false} {
			add := mainCall(t, "ADD", map[string]any{"ipMasq": then, "ipMasqExcept": raw(`["10.0.0.0/8"]`)})
			check := add
			prev := add.succeeds(t).stdout
			check.command, check.keys = "CHECK", map[string]any{"prevResult": raw(prev), "ipam": add.keys["ipam"], "ipMasq": now, "ipMasqExcept": add.keys["ipMasqExcept"]}
			add.kernel.calls = nil
			check.succeeds(t)
			if got := slices.Contains(add.kernel.calls, "check-masquerade shop-net "+device+" [10.0.0.0/8]"); got != then {
				t.Errorf("ADD with ipMasq %v, CHECK with %v: %q", then, now, add.kernel.calls)
			}
			add.kernel.fails["check-masquerade"] = errors.New("no table")
			if then {
				check.fails(t, codeChanged, "no table")
			} else {
				check.succeeds(t)
			}
		}
	}
}

// GC removes what belongs to attachments of its network that are not valid, of the IPAM plugin too, and
// keeps the record of what it could not remove.
func TestMainGC(t *testing.T) {
	add := mainCall(t, "ADD", map[string]any{"ipMasq": true})
	for _, c := range []string{"a", "b", "z"} {
		add.env = map[string]string{"CNI_IFNAME": "eth1", "CNI_CONTAINERID": c}
		if c == "z" {
			add.keys["name"] = "other"
		}
		add.succeeds(t)
	}
	name := func(container string) string {
		return podnet.HostName(pod.Key{Container: container, Interface: "eth1"})
	}
	add.kernel.calls = slices.DeleteFunc(add.kernel.calls, func(s string) bool { return !strings.HasPrefix(s, "masq") })[:2]
	gc := add
	gc.command, gc.keys = "GC", map[string]any{"ipam": add.keys["ipam"], "prevResult": nil, "cni.dev/valid-attachments": raw(`[{"containerID": "b", "ifname": "eth1"}]`)}
	// As long as an interface is there, the IPAM plugin is told that its attachment is valid.
	gc.keys["cni.dev/attachments"] = gc.keys["cni.dev/valid-attachments"] // libcni passes both
	add.kernel.fails["remove"], add.ipam.calls = errors.New("boom"), nil
	gc.fails(t, codeIO, "container a, interface eth1: boom")
	if want := []string{"GC host-local"}; !slices.Equal(add.ipam.calls, want) || len(add.ipam.held) != 3 || len(records(t, add.dir)) != 3 {
		t.Errorf("%q, want %q; %d addresses, %d records", add.ipam.calls, want, len(add.ipam.held), len(records(t, add.dir)))
	}
	var conf map[string]json.RawMessage
	if err := json.Unmarshal([]byte(add.ipam.conf), &conf); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
		if want := `[{"containerID":"b","ifname":"eth1"},{"containerID":"a","ifname":"eth1"}]`; string(conf[key]) != want {
			t.Errorf("%s is %s, want %s", key, conf[key], want)
		}
	}
	if string(conf["name"]) != `"shop-net"` || string(conf["keyOfLater"]) != "[1]" {
		t.Errorf("IPAM's configuration is %s", add.ipam.conf)
	}
	delete(add.kernel.fails, "remove")
	// Which interfaces there are is not known without the records.
	blind := gc
	blind.dir, add.ipam.calls = "/dev/null", nil
	if blind.fails(t, codeIO, "list records of pods"); len(add.ipam.calls) != 0 {
		t.Errorf("without records: %q", add.ipam.calls)
	}
	add.ipam.fails["DEL"] = errors.New("disk")
	gc.fails(t, codeIO, "container a, interface eth1: DEL of IPAM plugin host-local: disk")
	if len(records(t, add.dir)) != 3 {
		t.Errorf("records %v", records(t, add.dir))
	}
	add.ipam.fails, add.ipam.calls = map[string]error{"GC": types.NewError(types.ErrInternal, "old", "")}, nil
	gc.fails(t, code(types.ErrInternal), "GC of IPAM plugin host-local: old")
	if want := []string{"DEL host-local a", "GC host-local"}; !slices.Equal(add.ipam.calls, want) {
		t.Errorf("%q, want %q", add.ipam.calls, want)
	}
	delete(add.ipam.fails, "GC")
	gc.succeeds(t)
	if !maps.Equal(add.kernel.made, map[string]bool{name("b"): true, name("z"): true}) || len(add.ipam.held) != 2 {
		t.Errorf("left %v, %v", add.kernel.made, add.ipam.held)
	}
	if !strings.Contains(add.ipam.conf, `"cni.dev/valid-attachments": [{"containerID": "b", "ifname": "eth1"}]`) {
		t.Errorf("IPAM's configuration is %s", add.ipam.conf)
	}
	if last := add.kernel.calls[len(add.kernel.calls)-1]; last != "unmasquerade shop-net ["+name("a")+"]" {
		t.Errorf("%q", last)
	}
}

// A GC whose time ends has deleted the records of what it has removed, so that the next one goes on from there.
func TestMainGCGoesOn(t *testing.T) {
	add := mainCall(t, "ADD", nil)
	for _, c := range []string{"a", "b", "c"} {
		add.env = map[string]string{"CNI_IFNAME": "eth1", "CNI_CONTAINERID": c}
		add.succeeds(t)
	}
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	gc := add
	gc.command, gc.keys = "GC", map[string]any{"timeout": "500ms", "ipam": add.keys["ipam"], "prevResult": nil, "cni.dev/valid-attachments": raw("[]")}
	var stdout, stderr strings.Builder
	p := gc.plugin(&stdout, &stderr)
	p.kernel = &slowKernel{add.kernel, 2, never}
	if p.run() != 1 || !strings.Contains(stdout.String(), "GC did not finish within 500ms") {
		t.Errorf("%s, %s", &stdout, &stderr)
	}
	if left := records(t, add.dir); len(left) != 1 || left[0].Container != "c" {
		t.Errorf("left %+v", left)
	}
}

// slowKernel removes some interfaces, and then blocks.
type slowKernel struct {
	kernel
	removes int
	never   chan struct{}
}

func (k *slowKernel) Remove(name string) error {
	if k.removes--; k.removes < 0 {
		<-k.never
		return errors.New("the test is over")
	}
	return k.kernel.Remove(name)
}

func TestMainStatus(t *testing.T) {
	c := mainCall(t, "STATUS", map[string]any{"prevResult": nil})
	c.succeeds(t)
	if want := []string{"STATUS host-local"}; !slices.Equal(c.ipam.calls, want) {
		t.Errorf("%q", c.ipam.calls)
	}
	c.ipam.fails["STATUS"] = types.NewError(types.ErrInternal, "no disk", "")
	c.fails(t, codeUnavailable, "STATUS of IPAM plugin host-local: no disk")
	c.ipam.fails["STATUS"] = types.NewError(51, "few addresses", "")
	c.fails(t, codeLimited, "few addresses")
}

// STATUS fails if the kernel has none of the devices, and makes none.
func TestMainStatusOfDevices(t *testing.T) {
	for _, c := range []struct {
		device string
		lacks  []pod.Device
		want   string
	}{
		{"netkit", []pod.Device{pod.Netkit}, "the kernel has no netkit devices"},
		{"netkit-l2", []pod.Device{pod.Netkit}, "the kernel has no netkit devices"},
		{"veth", []pod.Device{pod.Veth}, "the kernel has no veth devices"},
		{"auto", []pod.Device{pod.Veth, pod.Netkit}, "the kernel has no netkit devices"},
		{"auto", []pod.Device{pod.Netkit}, ""},
		{"auto", []pod.Device{pod.Veth}, ""},
		{"netkit", []pod.Device{pod.Veth}, ""},
	} {
		status := mainCall(t, "STATUS", map[string]any{"prevResult": nil, "device": c.device})
		status.kernel.lacks = c.lacks
		if c.want == "" {
			status.succeeds(t)
		} else {
			status.fails(t, codeUnavailable, c.want)
		}
		if len(status.kernel.calls) != 0 {
			t.Errorf("%s: %q", c.device, status.kernel.calls)
		}
	}
}

// The time that the IPAM plugin takes does not count for the timeout of the plugin.
func TestIPAMHasItsOwnTime(t *testing.T) {
	c := mainCall(t, "ADD", map[string]any{"timeout": "2s"})
	c.ipam.slow = 2500 * time.Millisecond
	c.succeeds(t)
}

// A daemon that does not answer delays a pod by a second.
func TestMainDoesNotWaitLong(t *testing.T) {
	c := mainCall(t, "ADD", nil)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	c.keys["socket"] = daemon(t, c.dir, func(http.ResponseWriter, *http.Request) { <-never })
	start := time.Now()
	if o := c.succeeds(t); !strings.Contains(o.stderr, "has not answered in time") || time.Since(start) > 5*time.Second {
		t.Errorf("%v: %s", time.Since(start), o.stderr)
	}
}

// The plugin reports each setting of the host that it changed.
func TestForwardingIsReported(t *testing.T) {
	c := mainCall(t, "ADD", nil)
	p := c.plugin(nil, nil)
	var stdout, stderr strings.Builder
	p.Stdout, p.Stderr, p.kernel = &stdout, &stderr, forwarding{c.kernel}
	if p.run() != 0 || !strings.Contains(stderr.String(), "tcpilot-cni: ADD pod shop/web-1: set net.ipv4.ip_forward=1") {
		t.Errorf("%s, %s", &stdout, &stderr)
	}
}

type forwarding struct{ kernel }

func (forwarding) Forward(bool, bool) ([]string, error) {
	return []string{"net.ipv4.ip_forward=1"}, nil
}
