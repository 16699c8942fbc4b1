package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

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
	if err := podrecord.Dir(dir).BeginRemoval(&podrecord.Removal{Since: recordA.Added}); err != nil {
		t.Fatal(err)
	}
	asked, err := d.Doctor(ctx)
	alone, failed := Doctor(p.config)
	for _, doc := range []api.Doctor{asked, alone} {
		if r := doc.Removal; err != nil || failed != nil || r == nil || !slices.Equal(r.Pods, []string{"shop/web-1", "shop/web-2"}) || r.Since.IsZero() {
			t.Errorf("doctor: the removal is %+v, %v, %v", r, err, failed)
		}
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
	sync(0) // the rules follow right after the list
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
