package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/kubeapi"
	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// putRecord writes a record as the CNI plugin does.
func putRecord(t *testing.T, dir string, p *pod.Pod) (file string) {
	t.Helper()
	p.Interface = "eth0"
	if err := podrecord.Dir(dir).Put(p); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, p.Container+"@eth0.json")
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// podDaemon is a daemon that only reads records.
func podDaemon(dir string, rules ...policy.Rule) (*Daemon, *lockedBuffer) {
	log := &lockedBuffer{}
	d := &Daemon{log: slog.New(slog.NewTextHandler(log, nil))}
	d.pods.records, d.rules.base = podrecord.Dir(dir), rules
	return d, log
}

func TestStaleRecords(t *testing.T) {
	own, err := netns.Cookie("")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "netns")
	if err := os.Symlink("/proc/self/ns/net", path); err != nil {
		t.Fatal(err)
	}
	put := func(container, path string, cookie uint64) string {
		return putRecord(t, filepath.Join(dir, "pods"), &pod.Pod{Container: container, Namespace: "n", Name: container, NetNS: path, Cookie: cookie})
	}
	d, log := podDaemon(filepath.Join(dir, "pods"), policy.Rule{Name: "all", Match: policy.Match{Pod: &pod.Match{}}})
	files := map[string]string{
		"good": put("good", path, own), "other": put("other", path, own+1), "gone": put("gone", filepath.Join(dir, "nothing"), own),
		"elsewhere": put("elsewhere", filepath.Join(dir, "no", "such", "directory"), own), "file": put("file", "/etc/passwd", own),
	}
	d.readPods(d.controls.usable)
	v := d.pods.view.Load()
	if v.set.Len() != 1 || v.names[own] != "n/good" {
		t.Errorf("pods %v", v.names)
	}
	kept := []string{"elsewhere", "file", "good"}
	for name, file := range files {
		if exists(file) != slices.Contains(kept, name) {
			t.Errorf("record %s: exists %v", name, exists(file))
		}
	}
	if len(v.refused) != 4 || !slices.ContainsFunc(v.refused, func(r api.RefusedPod) bool { return r.Pod == "n/other" && r.Removed }) {
		t.Errorf("refused %+v", v.refused)
	}
	n := strings.Count(log.String(), "record of a pod not used")
	if n != 4 || !strings.Contains(log.String(), `msg="pods read" pods=1`) {
		t.Errorf("log:\n%s", log)
	}
	d.readPods(d.controls.usable) // what is refused again for the same reason is not logged again
	if l, _ := d.Pods(ctx); strings.Count(log.String(), "record of a pod not used") != n || len(l.Refused) != 2 || len(l.Pods) != 1 || !slices.Equal(l.Pods[0].Rules, []string{"all"}) {
		t.Errorf("%+v\n%s", l, log)
	}

	d.pods.own = own // a record of the daemon's own namespace is no pod's
	d.readPods(d.controls.usable)
	if v := d.pods.view.Load(); v.set.Len() != 0 || !exists(files["good"]) {
		t.Errorf("the daemon's own namespace is that of a pod: %v", v.names)
	}
	if !strings.Contains(log.String(), `msg="pod removed" pod=n/good`) {
		t.Errorf("log:\n%s", log)
	}
}

// The record of an interface that the plugin has to remove stays until DEL or GC has read it.
func TestRecordOfMadeInterfaceStays(t *testing.T) {
	dir := t.TempDir()
	file := putRecord(t, dir, &pod.Pod{Container: "made", NetNS: filepath.Join(dir, "nothing"), Cookie: 1 << 40, Made: true})
	d, _ := podDaemon(dir)
	d.readPods(d.controls.usable)
	v := d.pods.view.Load()
	if v.set.Len() != 0 || !exists(file) || len(v.refused) != 1 || v.refused[0].Removed || !strings.Contains(v.refused[0].Why, "(DEL)") {
		t.Errorf("record exists: %v; %d pods, refused %+v", exists(file), v.set.Len(), v.refused)
	}
}

// The path is entered again if another file is in its place, and once a minute.
func TestPathsAreEnteredAgain(t *testing.T) {
	own, err := netns.Cookie("")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.Symlink("/proc/self/ns/net", path); err != nil {
		t.Fatal(err)
	}
	var p pods
	start := time.Now()
	r := pod.Pod{NetNS: path, Cookie: own}
	check := func(at time.Time) time.Time {
		t.Helper()
		checked := map[podPlace]podCheck{}
		if _, err := p.check(&r, at, checked); err != nil {
			t.Fatal(err)
		}
		p.checked = checked
		return checked[podPlace{path, own}].at
	}
	check(start)
	if at := check(start.Add(time.Second)); !at.Equal(start) {
		t.Error("entered again at once")
	}
	if at := check(start.Add(recheckPods)); at.Equal(start) {
		t.Error("not entered again after a minute")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if gone, err := p.check(&r, start, map[podPlace]podCheck{}); !gone || err == nil {
		t.Errorf("a path that is gone: %v, %v", gone, err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if at := check(start); !at.Equal(start.Add(recheckPods)) {
		t.Error("a pod is dropped because its path could not be entered once")
	}
}

func TestPodControls(t *testing.T) {
	available, err := kernelcc.Available()
	if err != nil {
		t.Fatal(err)
	}
	asks := func(cookie uint64, value string) pod.Pod {
		return pod.Pod{Container: fmt.Sprint(cookie), Cookie: cookie, Annotations: map[string]string{policy.ControlAnnotation: value}}
	}
	d, _ := podDaemon("")
	d.controls = &controls{}
	set := pod.NewSet([]pod.Pod{asks(1, available[0]), asks(2, "no-such-cc"), asks(3, ""), asks(4, "a b"), asks(5, "tcpilot_nothing"), asks(6, available[0]+" "), {Cookie: 7}})
	got := podControls(set, d.controls.usable)
	want := map[uint64]string{1: "", 2: "no-such-cc is not available here", 3: "cannot be", 4: "cannot be", 5: "cannot be", 6: "cannot be"}
	if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
		t.Fatalf("%+v", got)
	}
	for cookie, text := range want {
		c := got[cookie]
		if (c.cc != tcp.CC{}) != (text == "") || (c.warning == "") != (text == "") || !strings.Contains(c.warning, text) {
			t.Errorf("%d: %+v, want %q", cookie, c, text)
		}
	}
	mixed := map[uint64]podControl{1: {cc: tcp.CCOf("reno")}, 2: {cc: tcp.CCOf("bbr")}, 3: {warning: "x"}, 4: {cc: tcp.CCOf("reno")}}
	if got := wantedControls(mixed); !slices.Equal(got, []tcp.CC{tcp.CCOf("bbr"), tcp.CCOf("reno")}) {
		t.Errorf("wanted %v", got)
	}
}

// The poll of the host offers what the kernel has, and looks annotations up in the same reading of its list.
func TestAnnotationsAreLookedUpInTheLatestReading(t *testing.T) {
	c := &controls{inKernel: parseCCs([]string{"cubic", "gone"})}
	lookUps := 0
	once := func() ([]tcp.CC, error) {
		lookUps++
		return c.usableBefore()
	}
	asks := func(cookie uint64, value string) pod.Pod {
		return pod.Pod{Container: fmt.Sprint(cookie), Cookie: cookie, Annotations: map[string]string{policy.ControlAnnotation: value}}
	}
	got := podControls(pod.NewSet([]pod.Pod{asks(1, "gone"), asks(2, "cubic")}), once)
	if got[1].cc != tcp.CCOf("gone") || got[2].cc != tcp.CCOf("cubic") || lookUps != 1 {
		t.Errorf("%+v after %d look-ups", got, lookUps)
	}
}

// A limit ends when its annotation is removed at the API server, also if the runtime has read it from the annotation as well. What the runtime
// asks for of its own stays.
func TestLimitEndsWithItsAnnotation(t *testing.T) {
	s := kubeapitest.New(t, nil)
	of := kubeapitest.Pod{Namespace: "shop", Name: "web-1", UID: "u1", Node: "here", Annotations: map[string]string{pod.EgressAnnotation: "10M"}}
	s.Put(of)
	changed := make(chan struct{}, 10)
	w, err := kubeapi.Open(kubeapi.Options{Kubeconfig: s.Kubeconfig(t, "secret"), Node: "here", Changed: func() { changed <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- w.Run(ctx) }()
	var a podAPI
	a.watcher.Store(w)
	expect := func(when string, want pod.Bandwidth) {
		t.Helper()
		<-changed
		p := pod.Pod{UID: "u1", Annotations: map[string]string{pod.EgressAnnotation: "10M"}, Bandwidth: pod.Bandwidth{Egress: 10e6, Ingress: 5e6}}
		a.annotate(&p)
		if got, wrong := p.Limits(); got != want || wrong != nil {
			t.Errorf("%s: %+v, %q, want %+v", when, got, wrong, want)
		}
	}
	expect("as it began", pod.Bandwidth{Egress: 10e6, Ingress: 5e6})
	of.Annotations = map[string]string{pod.EgressAnnotation: "20M"}
	s.Put(of)
	expect("changed", pod.Bandwidth{Egress: 20e6, Ingress: 5e6})
	of.Annotations = nil
	s.Put(of)
	expect("removed", pod.Bandwidth{Ingress: 5e6})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// An annotation that should be on or off, and is not, is a warning, a line of the log and one of 'tcpilot pods'.
func TestWrongSwitches(t *testing.T) {
	own, err := netns.Cookie("")
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]bool{"on": false, "off": false, "": true, "true": true, "ON": true} {
		dir := t.TempDir()
		path := filepath.Join(dir, "netns")
		if err := os.Symlink("/proc/self/ns/net", path); err != nil {
			t.Fatal(err)
		}
		putRecord(t, filepath.Join(dir, "pods"), &pod.Pod{Container: "c", Namespace: "shop", Name: "web", NetNS: path, Cookie: own,
			Annotations: map[string]string{routingAnnotation: value, bigTCPAnnotation: value}})
		d, log := podDaemon(filepath.Join(dir, "pods"))
		d.readPods(d.controls.usable)
		v := d.pods.view.Load()
		shown, err := d.Pods(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, annotation := range []string{"tcpilot.io/host-routing", "tcpilot.io/big-tcp"} {
			text := fmt.Sprintf("annotation %s: %q is neither on nor off", annotation, value)
			if got := slices.Contains(v.warnings(v.set.ByCookie(own)), text); got != want {
				t.Errorf("%s: %q: warning %v", annotation, value, got)
			}
			if got := strings.Contains(log.String(), strings.ReplaceAll(text, `"`, `\"`)); got != want {
				t.Errorf("%s: %q: log\n%s", annotation, value, log)
			}
			if got := strings.Contains(shown.Pods[0].Warning, text); got != want {
				t.Errorf("%s: %q: shown %+v", annotation, value, shown.Pods[0])
			}
		}
		// What the devices' own lines say is not said twice.
		devices := podDevicesView{wanted: true, big: bigTCPView{wanted: true}}
		p := v.set.ByCookie(own)
		if routing, big := devices.podRouting(p), devices.podBigTCP(p); (routing.Why != "" && value != "off") != want || strings.Contains(big.Why, "neither") != want {
			t.Errorf("%q: %+v, %+v", value, routing, big)
		}
	}
}

func TestShownAnnotations(t *testing.T) {
	d, _ := podDaemon("", policy.Rule{Name: "a"}, policy.Rule{Name: "b", Match: policy.Match{Pod: &pod.Match{Annotations: map[string]string{"team": "x"}}}})
	p := &pod.Pod{Annotations: map[string]string{"secret": "1", "team": "y", "tcpilot.io/profile": "bulk"}}
	if got := d.rules.shownAnnotations(p); !maps.Equal(got, map[string]string{"team": "y", "tcpilot.io/profile": "bulk"}) {
		t.Errorf("%v", got)
	}
}

// A mistyped annotation is reported, unless a rule is for it.
func TestUnknownAnnotations(t *testing.T) {
	d, _ := podDaemon("", policy.Rule{Name: "a", Match: policy.Match{Pod: &pod.Match{Annotations: map[string]string{"tcpilot.io/mine": "x"}}}})
	set := pod.NewSet([]pod.Pod{{Cookie: 7, Annotations: map[string]string{"tcpilot.io/devise": "veth", "tcpilot.io/speed": "1", "tcpilot.io/mine": "y", "team": "z"}},
		{Cookie: 8, Annotations: map[string]string{"tcpilot.io/device": "veth", "tcpilot.io/big-tcp": "off"}}})
	got := d.rules.unknownNames(set)
	want := map[uint64]string{7: "annotation tcpilot.io/devise is unknown: did you mean tcpilot.io/device?; annotation tcpilot.io/speed is unknown"}
	if !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestPodsCountEnds(t *testing.T) {
	var p pods
	none := func(*podView) {}
	p.observe(&tcp.Sample{Kind: tcp.KindClose, NetNS: 7}) // before the first reading
	p.publish(pod.NewSet([]pod.Pod{{Cookie: 7}}), none)
	p.observe(&tcp.Sample{Kind: tcp.KindClose, NetNS: 7, StandsFor: 3})
	p.observe(&tcp.Sample{Kind: tcp.KindClose, NetNS: 7})
	p.observe(&tcp.Sample{Kind: tcp.KindInterval, NetNS: 7})
	p.observe(&tcp.Sample{Kind: tcp.KindClose, NetNS: 8})
	p.publish(pod.NewSet([]pod.Pod{{Cookie: 7}, {Cookie: 8}}), none)
	if v := p.view.Load(); v.ended[7].Load() != 4 || v.ended[8].Load() != 0 {
		t.Errorf("%d and %d", v.ended[7].Load(), v.ended[8].Load())
	}
}

// What a record may contain is decided by a runtime, and by users of Kubernetes: whatever it is, names that are
// accepted can be shown, and annotations give a congestion control or a warning.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"container_id":"c1","interface":"eth0","namespace":"shop","name":"web","netns":"/run/netns/x","netns_cookie":7,"annotations":{"tcpilot.io/congestion-control":"bbr"}}`))
	f.Add([]byte(`{"container_id":"c1","interface":"eth0","netns":"/x","netns_cookie":1,"annotations":null}`))
	f.Add([]byte(`{"namespace":"\u001b"}`))
	d, _ := podDaemon("")
	d.controls = &controls{}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := podrecord.Dir(t.TempDir())
		if err := os.WriteFile(filepath.Join(string(dir), "c1@eth0.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		records, _, err := dir.List()
		if err != nil || len(records) == 0 {
			return
		}
		p := records[0].Pod
		if name := p.FullName(); strings.Count(name, "/") != 1 || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("name %q", name)
		}
		value, asks := p.Annotations[policy.ControlAnnotation]
		c, found := podControls(pod.NewSet([]pod.Pod{p}), d.controls.usable)[p.Cookie]
		switch {
		case found != asks:
			t.Errorf("%q: found %v", value, found)
		case asks && (c.cc == tcp.CC{}) == (c.warning == ""):
			t.Errorf("%q: %+v", value, c)
		case c.cc != tcp.CC{} && c.cc.String() != value:
			t.Errorf("%q became %s", value, c.cc)
		}
		if _, err := policy.WithPodControls([]policy.Rule{{Name: "a"}}, wantedControls(map[uint64]podControl{1: c})); err != nil {
			t.Error(err)
		}
	})
}
