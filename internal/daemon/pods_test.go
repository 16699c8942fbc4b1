package daemon

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// putRecord writes a record as the CNI plugin does: by rename.
func putRecord(t *testing.T, dir string, p *pod.Pod) (file string) {
	t.Helper()
	data, err := json.Marshal(p)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	name := p.Container + "@eth0.json"
	temporary := filepath.Join(dir, "."+name)
	if err == nil {
		err = os.WriteFile(temporary, data, 0o600)
	}
	file = filepath.Join(dir, name)
	if err == nil {
		err = os.Rename(temporary, file)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

func TestRecordDir(t *testing.T) {
	dir := recordDir(t.TempDir())
	if records, bad, err := recordDir(string(dir) + "/gone").List(); len(records)+len(bad) != 0 || err != nil {
		t.Errorf("a directory that does not exist: %v, %v, %v", records, bad, err)
	}
	good := pod.Pod{Container: "c1", Namespace: "shop", Name: "web-1", NetNS: "/run/netns/x", Cookie: 7}
	putRecord(t, string(dir), &good)
	for name, change := range map[string]func(*pod.Pod){
		"no cookie":           func(p *pod.Pod) { p.Cookie = 0 },
		"not the path":        func(p *pod.Pod) { p.NetNS = "x" },
		"cannot be the name":  func(p *pod.Pod) { p.Name = "a\x1b[2J" },
		"namespace of a pod":  func(p *pod.Pod) { p.Namespace = "" },
		"cannot be the id of": func(p *pod.Pod) { p.Container = " " },
	} {
		p := good
		p.Container = "bad"
		change(&p)
		file := putRecord(t, string(dir), &p)
		records, bad, err := dir.List()
		if len(records) != 1 || len(bad) != 1 || !strings.Contains(bad[0].Why, name) || err != nil {
			t.Errorf("%s: %v, %v, %v", name, records, bad, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"x.json": "{", ".hidden.json": "{", "notes.txt": "{"} {
		if err := os.WriteFile(filepath.Join(string(dir), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(string(dir), "d.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	records, bad, err := dir.List()
	if err != nil || len(records) != 1 || len(bad) != 2 || bad[0].Record != "d.json" || bad[1].Record != "x.json" {
		t.Fatalf("%v, %v, %v", records, bad, err)
	}
	if !strings.Contains(bad[0].Why, "a directory") || !strings.Contains(bad[1].Why, "not a record") {
		t.Errorf("%v", bad)
	}

	file := putRecord(t, string(dir), &good) // it was read before
	if err := dir.Remove(&records[0]); err == nil || !strings.Contains(err.Error(), "written again") || !exists(file) {
		t.Errorf("a newer record is removed: %v", err)
	}
	records, _, _ = dir.List()
	for range 2 { // also if it is gone
		if err := dir.Remove(&records[0]); err != nil || exists(file) {
			t.Errorf("remove: %v", err)
		}
	}
}

// podDaemon is a daemon that only reads records.
func podDaemon(dir string, rules ...policy.Rule) (*Daemon, *lockedBuffer) {
	log := &lockedBuffer{}
	d := &Daemon{log: slog.New(slog.NewTextHandler(log, nil))}
	d.pods.records, d.rules.base = recordDir(dir), rules
	return d, log
}

func TestStaleRecords(t *testing.T) {
	own, err := netns.Cookie("")
	if err != nil {
		t.Skip(err)
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
	d.readPods()
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
	d.readPods() // what is refused again for the same reason is not logged again
	if l, _ := d.Pods(ctx); strings.Count(log.String(), "record of a pod not used") != n || len(l.Refused) != 2 || len(l.Pods) != 1 || !slices.Equal(l.Pods[0].Rules, []string{"all"}) {
		t.Errorf("%+v\n%s", l, log)
	}

	d.pods.own = own // a record of the daemon's own namespace is no pod's
	d.readPods()
	if v := d.pods.view.Load(); v.set.Len() != 0 || !exists(files["good"]) {
		t.Errorf("the daemon's own namespace is that of a pod: %v", v.names)
	}
	if !strings.Contains(log.String(), `msg="pod removed" pod=n/good`) {
		t.Errorf("log:\n%s", log)
	}
}

// The path is entered again if another file is in its place, and once a minute.
func TestPathsAreEnteredAgain(t *testing.T) {
	own, err := netns.Cookie("")
	if err != nil {
		t.Skip(err)
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
		t.Skip(err)
	}
	asks := func(cookie uint64, value string) pod.Pod {
		return pod.Pod{Container: fmt.Sprint(cookie), Cookie: cookie, Annotations: map[string]string{policy.ControlAnnotation: value}}
	}
	d, _ := podDaemon("")
	d.controls = &controls{}
	set := pod.NewSet([]pod.Pod{asks(1, available[0]), asks(2, "no-such-cc"), asks(3, ""), asks(4, "a b"), asks(5, "tcpilot_nothing"), asks(6, available[0]+" "), {Cookie: 7}})
	got := d.podControls(set)
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

func TestShownAnnotations(t *testing.T) {
	d, _ := podDaemon("", policy.Rule{Name: "a"}, policy.Rule{Name: "b", Match: policy.Match{Pod: &pod.Match{Annotations: map[string]string{"team": "x"}}}})
	p := &pod.Pod{Annotations: map[string]string{"secret": "1", "team": "y", "tcpilot.io/profile": "bulk"}}
	if got := d.rules.shownAnnotations(p); !maps.Equal(got, map[string]string{"team": "y", "tcpilot.io/profile": "bulk"}) {
		t.Errorf("%v", got)
	}
}

func TestPodsCountEnds(t *testing.T) {
	var p pods
	none := func(*pod.Set) map[uint64]podControl { return nil }
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

// otherCC is a congestion control of Linux's that is not the default of new connections.
func otherCC(t *testing.T) (other, def string) {
	t.Helper()
	def, err := kernelcc.Default()
	if err != nil {
		t.Fatal(err)
	}
	if def == "reno" {
		return "cubic", def
	}
	return "reno", def
}

// podNetNS makes a namespace, and gives it a path that the test can remove.
func (p *place) podNetNS(t *testing.T, name string) (ns *testenv.NS, path string, cookie uint64) {
	t.Helper()
	ns, path = testenv.NetNS(t), p.path(name)
	if err := os.Symlink(ns.Path(), path); err != nil {
		t.Fatal(err)
	}
	cookie, err := netns.Cookie(path)
	if err != nil {
		t.Fatal(err)
	}
	return ns, path, cookie
}

// connectIn makes a connection over loopback in a namespace, and returns its congestion control.
func connectIn(t *testing.T, ns *testenv.NS) string {
	t.Helper()
	l := ns.Listen(t, "tcp", "127.0.0.1:0")
	defer l.Close()
	c := ns.Dial(t, "tcp", l.Addr().String())
	defer c.Close()
	return ccOf(t, c)
}

func TestRootPods(t *testing.T) {
	p := newPlace(t)
	a, pathA, cookieA := p.podNetNS(t, "a")
	b, pathB, cookieB := p.podNetNS(t, "b")
	other, def := otherCC(t)
	p.rules(t, fmt.Sprintf("rules: [{name: web, match: {pod: {namespace: shop, name: web-*}}, set: {cc: %s}}]", other))
	dir := p.path("pods")
	recordA := pod.Pod{Container: "c1", Interface: "eth0", Namespace: "shop", Name: "web-1", NetNS: pathA, Cookie: cookieA, Added: time.Now()}
	recordB := pod.Pod{Container: "c2", Interface: "eth0", Namespace: "shop", Name: "db-0", NetNS: pathB, Cookie: cookieB, Added: time.Now()}
	d := p.start(t)
	expect := func(when, wantA, wantB string) {
		t.Helper()
		if gotA, gotB := connectIn(t, a), connectIn(t, b); gotA != wantA || gotB != wantB {
			t.Errorf("%s: %s and %s, want %s and %s\n%s", when, gotA, gotB, wantA, wantB, d.log)
		}
	}
	sync := func(pods int) []api.RefusedPod {
		t.Helper()
		r, err := d.SyncPods(ctx)
		if err != nil || r.Pods != pods {
			t.Errorf("sync: %+v, %v, want %d pods", r, err, pods)
		}
		return r.Refused
	}
	expect("without pods", def, def) // a rule that selects no pod matches nothing
	if s := d.status(t); s.Pods != nil || slices.ContainsFunc(s.Degraded, func(text string) bool { return strings.Contains(text, "web") }) {
		t.Errorf("status without pods: %+v, %v", s.Pods, s.Degraded)
	}
	fileA := putRecord(t, dir, &recordA)
	putRecord(t, dir, &recordB)
	sync(2)
	expect("by name", other, def)

	recordB.Name = "web-2"
	putRecord(t, dir, &recordB)
	sync(2)
	expect("renamed", other, other)
	if err := os.Remove(fileA); err != nil {
		t.Fatal(err)
	}
	sync(1)
	expect("removed", def, other)

	d.stop(t)
	putRecord(t, dir, &recordA) // while no daemon runs
	d = p.start(t)
	expect("after a restart", other, other)
	if !strings.Contains(d.log.String(), `msg="pods read" pods=2`) {
		t.Errorf("log:\n%s", d.log)
	}
	e, err := d.Explain(ctx, api.ExplainRequest{Remote: netip.MustParseAddr("127.0.0.1"), Pod: "shop/web-1"})
	if err != nil || e.Rule != "web" || e.Pod != "shop/web-1" {
		t.Errorf("explain: %+v, %v", e, err)
	}
	if _, err := d.Explain(ctx, api.ExplainRequest{Remote: netip.MustParseAddr("127.0.0.1"), Pod: "shop/gone"}); err == nil || !strings.Contains(err.Error(), `no pod "shop/gone"`) {
		t.Errorf("explain of a pod that is not: %v", err)
	}
	await(t, "the connections of both pods", func() bool {
		l, err := d.Pods(ctx)
		return err == nil && len(l.Pods) == 2 && l.Pods[0].Pod == "shop/web-1" && slices.Equal(l.Pods[0].Rules, []string{"web"}) &&
			l.Pods[0].Connections == 2 && l.Pods[1].Connections == 2 // both ends of one
	})

	recordA.Cookie += 1 << 40 // of a namespace that is gone; another one has its path
	putRecord(t, dir, &recordA)
	if refused := sync(1); len(refused) != 1 || !refused[0].Removed || refused[0].Pod != "shop/web-1" || exists(fileA) {
		t.Errorf("a stale record: %+v", refused)
	}
	expect("stale", def, other)
	if err := os.Remove(pathB); err != nil {
		t.Fatal(err)
	}
	await(t, "the pod without a path to be dropped, without being asked to", func() bool {
		l, err := d.Pods(ctx)
		return err == nil && len(l.Pods) == 0
	})
	expect("gone", def, def)
	if want := fmt.Sprintf(`msg="pod removed" pod=shop/web-1 netns=%d rules=[web]`, cookieA); !strings.Contains(d.log.String(), want) {
		t.Errorf("log lacks %s:\n%s", want, d.log)
	}
}

func TestRootPodAnnotations(t *testing.T) {
	p := newPlace(t)
	a, pathA, cookieA := p.podNetNS(t, "a")
	b, pathB, cookieB := p.podNetNS(t, "b")
	other, def := otherCC(t)
	p.rules(t, fmt.Sprintf("rules: [{name: left, match: {local_port: 1}, leave: true}, {name: all, learn: {arms: [%s], hold_out: 0%%}, set: {init_cwnd: 31}}]", def))
	dir := p.path("pods")
	put := func(container, path string, cookie uint64, value string) {
		putRecord(t, dir, &pod.Pod{Container: container, Namespace: "shop", Name: container, NetNS: path, Cookie: cookie, Annotations: map[string]string{policy.ControlAnnotation: value}})
	}
	put("a", pathA, cookieA, other)
	put("b", pathB, cookieB, "no-such-cc")
	d := p.start(t)
	expect := func(when, wantA, wantB string) {
		t.Helper()
		if gotA, gotB := connectIn(t, a), connectIn(t, b); gotA != wantA || gotB != wantB {
			t.Errorf("%s: %s and %s, want %s and %s\n%s", when, gotA, gotB, wantA, wantB, d.log)
		}
	}
	expect("at the start", other, def)
	e, err := d.Explain(ctx, api.ExplainRequest{Remote: netip.MustParseAddr("127.0.0.1"), Pod: "shop/a"})
	if err != nil || e.Rule != "all@"+other || len(e.Fields) != 1 || e.Fields[0].Field != "init_cwnd" || !e.Fields[0].Applied {
		t.Errorf("explain: %+v, %v", e, err)
	}
	s := d.status(t)
	if s.Pods == nil || s.Pods.Count != 2 || len(s.Pods.Warnings) != 1 || !strings.Contains(s.Pods.Warnings[0], "pod shop/b: annotation "+policy.ControlAnnotation+": no-such-cc is not available here") {
		t.Errorf("status %+v", s.Pods)
	}
	if !strings.Contains(d.log.String(), `msg="annotation of a pod not followed" pod=shop/b`) {
		t.Errorf("log:\n%s", d.log)
	}
	l, err := d.Pods(ctx)
	if err != nil || len(l.Pods) != 2 || l.Pods[0].Control != other || l.Pods[1].Control != "" || l.Pods[1].Warning == "" {
		t.Errorf("pods %+v, %v", l, err)
	}

	put("b", pathB, cookieB, other)
	put("a", pathA, cookieA, "")
	if _, err := d.SyncPods(ctx); err != nil {
		t.Fatal(err)
	}
	expect("annotations changed", def, other)
	if _, err := d.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	expect("after a reload", def, other)
	put("b", pathB, cookieB, "")
	if _, err := d.SyncPods(ctx); err != nil {
		t.Fatal(err)
	}
	expect("none left", def, def)
	if rules, err := d.Rules(ctx); err != nil || len(rules.Rules) != 2 {
		t.Errorf("rules %+v, %v", rules, err)
	}
}

// TestMeasurePodSync compares how long the daemon takes to put rules for 200 pods into force with what a
// container runtime may be made to wait.
func TestMeasurePodSync(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		p := newPlace(t)
		p.rules(t, "rules: [{name: web, match: {pod: {name: web-*}}, set: {cc: reno}}]")
		d := p.start(t)
		records := make([]pod.Pod, 200)
		for i := range records {
			_, path, cookie := p.podNetNS(t, fmt.Sprint("ns", i))
			records[i] = pod.Pod{Container: fmt.Sprint("c", i), Namespace: "shop", Name: fmt.Sprint("web-", i), NetNS: path, Cookie: cookie}
			putRecord(t, p.path("pods"), &records[i])
		}
		sync := func(what string) {
			t.Helper()
			start := time.Now()
			r, err := d.SyncPods(ctx)
			took := time.Since(start)
			if err != nil || r.Pods != len(records) {
				t.Fatalf("%+v, %v", r, err)
			}
			m.Holds("sync of 200 pods, "+what, "at most 200ms", took <= 200*time.Millisecond, took.Round(10*time.Microsecond).String())
		}
		sync("all new")
		sync("nothing new")
		records[0].Name = "db"
		putRecord(t, p.path("pods"), &records[0])
		sync("one renamed")
	})
}
