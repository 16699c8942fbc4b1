package kubeapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
	"github.com/tcpilot/tcpilot/internal/pod"
)

func annotated(uid, value string) kubeapitest.Pod {
	return kubeapitest.Pod{Namespace: "shop", Name: "web-" + uid, UID: uid, Node: "here", Annotations: map[string]string{"a": value}}
}

// world is a watcher.
type world struct {
	w       *Watcher
	changed chan struct{}
	listed  chan int
	failed  chan error
}

// served is a watcher of a server of the tests.
type served struct {
	*kubeapitest.Server
	*world
}

func start(t *testing.T, token string) *served {
	t.Helper()
	s := kubeapitest.New(t, nil)
	s.Put(annotated("1", "one"))
	s.Put(annotated("2", "two"))
	s.Put(kubeapitest.Pod{Namespace: "shop", Name: "elsewhere", UID: "9", Node: "there"})
	return &served{s, follow(t, s.Kubeconfig(t, token), "here")}
}

// follow starts a watcher for a node.
func follow(t *testing.T, kubeconfig, node string) *world {
	t.Helper()
	x := &world{changed: make(chan struct{}, 100), listed: make(chan int, 100), failed: make(chan error, 100)}
	w, err := Open(Options{Kubeconfig: kubeconfig, Node: node, Changed: func() { x.changed <- struct{}{} }, Listed: func(pods int) { x.listed <- pods }})
	if err != nil {
		t.Fatal(err)
	}
	x.w = w
	x.run(t)
	return x
}

// run runs the watcher as the daemon does, with a shorter pause.
func (x *world) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := x.w.Run(ctx); err != nil {
				select {
				case x.failed <- err:
				default:
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// expect waits until the pod has the annotation; "" is a pod that is not known.
func (x *world) expect(t *testing.T, uid, want string) {
	t.Helper()
	for limit := time.After(10 * time.Second); ; {
		a, known := x.w.Annotations(uid)
		if known == (want != "") && a["a"] == want {
			return
		}
		select {
		case <-x.changed:
		case <-limit:
			t.Fatalf("pod %s: %v, %v, want %q", uid, a, known, want)
		}
	}
}

func TestFollowsThePodsOfTheNode(t *testing.T) {
	x := start(t, "secret")
	x.expect(t, "1", "one")
	x.expect(t, "2", "two")
	x.expect(t, "9", "")
	x.Put(annotated("1", "changed"))
	x.expect(t, "1", "changed")
	x.Put(annotated("3", "new"))
	x.expect(t, "3", "new")
	x.Delete("3")
	x.expect(t, "3", "")
	if n := x.Asked("continue=1"); n != 1 {
		t.Errorf("the second page of the list was read %d times", n)
	}
}

// A change of anything but annotations is none.
func TestOnlyAnnotationsAreChanges(t *testing.T) {
	x := start(t, "secret")
	<-x.listed
	<-x.changed
	for range 3 {
		x.Put(annotated("1", "one"))
	}
	x.Put(annotated("2", "last"))
	<-x.changed
	if a, _ := x.w.Annotations("2"); a["a"] != "last" || len(x.changed) != 0 {
		t.Errorf("annotations are %v, and %d changes more", a, len(x.changed))
	}
}

// hash is the UID of a static pod for the container runtime.
const hash = "0123456789abcdef0123456789abcdef"

// An annotation cannot claim the UID of a pod of the API server.
func TestNoPodClaimsToBeAnother(t *testing.T) {
	x := start(t, "secret")
	x.expect(t, "1", "one")
	p := annotated("5", "another")
	p.Annotations[configHash] = "1"
	x.Put(p)
	x.expect(t, "5", "another")
	x.expect(t, "1", "one")
	x.Delete("5")
	x.expect(t, "5", "")
	x.expect(t, "1", "one")
}

// The runtime's pods have their names, static ones under the UID that the runtime knows only.
func TestPods(t *testing.T) {
	x := start(t, "secret")
	static := annotated("5", "static")
	static.Annotations[configHash] = hash
	x.Put(static)
	x.expect(t, hash, "static")
	names := map[string]string{}
	for _, p := range x.w.Pods() {
		names[p.UID] = p.FullName()
	}
	if names[hash] != "shop/web-5" || names["1"] != "shop/web-1" || names["5"] != "" {
		t.Errorf("%v", names)
	}
}

// A static pod (from a manifest file on the node) has another UID in the container runtime than in the API server.
func TestStaticPods(t *testing.T) {
	x := start(t, "secret")
	p := annotated("5", "static")
	p.Annotations[configHash] = hash
	x.Put(p)
	x.expect(t, hash, "static")
	x.Delete("5")
	x.expect(t, hash, "")
}

func TestChangesThatWereForgottenAreListedAgain(t *testing.T) {
	x := start(t, "secret")
	x.expect(t, "1", "one")
	for x.Asked("watch=1") == 0 {
		time.Sleep(time.Millisecond)
	}
	x.Forget(func() {
		x.Put(annotated("1", "after"))
		x.Delete("2")
	})
	x.expect(t, "1", "after")
	x.expect(t, "2", "")
	if len(x.failed) != 0 {
		t.Errorf("a failure: %v", <-x.failed)
	}
}

// While the server refuses everything, what was known stays known; afterwards changes are followed again.
func TestAServerThatRefuses(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusGone, http.StatusInternalServerError, http.StatusTooManyRequests} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			x := start(t, "secret")
			x.expect(t, "1", "one")
			x.Refuse(status)
			x.Put(annotated("1", "meanwhile"))
			for !strings.Contains((<-x.failed).Error(), fmt.Sprint(status)) { // first the end of the watch
			}
			x.expect(t, "1", "one")
			x.Refuse(0)
			x.expect(t, "1", "meanwhile")
		})
	}
}

func TestAWrongToken(t *testing.T) {
	x := start(t, "wrong")
	if err := <-x.failed; !strings.Contains(err.Error(), "does not accept the credentials (401): Unauthorized") {
		t.Error(err)
	}
	if _, known := x.w.Annotations("1"); known || x.w.reads.Load() {
		t.Error("known without an answer")
	}
}

// What was known stays known while the server does not answer.
func TestAServerThatIsSlow(t *testing.T) {
	x := start(t, "secret")
	x.expect(t, "1", "one")
	for x.Asked("watch=1") == 0 {
		time.Sleep(time.Millisecond)
	}
	x.Hold()
	x.Put(annotated("1", "meanwhile"))
	<-x.failed // the end of the watch
	time.Sleep(50 * time.Millisecond)
	x.expect(t, "1", "one")
	x.Release()
	x.expect(t, "1", "meanwhile")
}

// What was known stays known while there is no server, and a new one with older versions at its address is followed.
func TestAServerThatIsGone(t *testing.T) {
	x := start(t, "secret")
	x.expect(t, "1", "one")
	at := x.Listener.Addr().String()
	x.Listener.Close()
	x.CloseClientConnections()
	for !strings.Contains((<-x.failed).Error(), "connection refused") {
	}
	x.expect(t, "1", "one")
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	s := kubeapitest.New(t, l)
	s.Put(annotated("1", "anew"))
	x.expect(t, "1", "anew")
	x.expect(t, "2", "")
	s.Put(annotated("1", "anew again"))
	x.expect(t, "1", "anew again")
	if n := <-x.listed; n != 2 || len(x.listed) != 0 {
		t.Errorf("%d pods at first, and %d lists more", n, len(x.listed))
	}
}

// An event that the server refuses forever does not hold up others.
func TestEventsThatAreRefused(t *testing.T) {
	s := kubeapitest.New(t, nil)
	w, err := Open(Options{Kubeconfig: s.Kubeconfig(t, "secret"), Node: "here"})
	if err != nil {
		t.Fatal(err)
	}
	for status, want := range map[int]struct{ fails, forever bool }{409: {}, 404: {}, 422: {true, true}, 400: {true, true}, 401: {true, false}, 403: {true, false}, 429: {true, false}, 500: {true, false}} {
		w.client.CloseIdleConnections()
		s.Refuse(status)
		err := w.write(t.Context(), &event{"shop", "web-1", "1", "text", time.Now()})
		if (err != nil) != want.fails || refusedForever(err) != want.forever {
			t.Errorf("%d: %v", status, err)
		}
		if status == http.StatusForbidden && !strings.Contains(err.Error(), "create events") {
			t.Errorf("a refused event does not name the permission for events: %v", err)
		}
	}
}

// Watches that end at once do not make a loop.
func TestWatchesThatEndAtOnce(t *testing.T) {
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n++; r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"1"}}`)
		}
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "k")
	put(t, file, "current-context: x\ncontexts: [{name: x, context: {cluster: x, user: x}}]\nclusters: [{name: x, cluster: {server: '"+s.URL+"'}}]\nusers: [{name: x, user: {}}]\n")
	w, err := Open(Options{Kubeconfig: file, Node: "n", Changed: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "ended at once") || n != 2 {
		t.Errorf("%v, %d requests", err, n)
	}
}

// A server that accepts connections and never answers ends with the context.
func TestAServerThatIsSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := filepath.Join(t.TempDir(), "k")
	put(t, file, "current-context: x\ncontexts: [{name: x, context: {cluster: x, user: x}}]\nclusters: [{name: x, cluster: {server: 'http://"+l.Addr().String()+"'}}]\nusers: [{name: x, user: {}}]\n")
	w, err := Open(Options{Kubeconfig: file, Node: "n", Changed: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.Run(ctx); err != nil || w.reads.Load() {
		t.Errorf("%v", err)
	}
}

func TestEvents(t *testing.T) {
	x := start(t, "secret")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := pod.Pod{Namespace: "shop", Name: "web-1", UID: "1"}
	if !x.w.Warn(&p, "annotation x: nonsense") || x.w.Warn(&pod.Pod{Name: "container"}, "no pod of Kubernetes") {
		t.Error("Warn")
	}
	go x.w.WriteEvents(ctx)
	for len(x.Events()) == 0 {
		time.Sleep(time.Millisecond)
	}
	e := x.Events()[0]
	if e.Type != "Warning" || e.Reason != eventReason || e.Message != "annotation x: nonsense" || e.InvolvedObject.Name != "web-1" || e.InvolvedObject.UID != "1" {
		t.Errorf("%+v", e)
	}
}

// The event about a static pod has the UID of the pod in the API server, by which 'kubectl describe pod' finds the
// event. It is not written before that UID is known.
func TestEventsOfStaticPods(t *testing.T) {
	x := start(t, "secret")
	x.expect(t, "1", "one")
	go x.w.WriteEvents(t.Context())
	p := pod.Pod{Namespace: "shop", Name: "web-5", UID: hash, Annotations: map[string]string{configHash: hash}}
	if x.w.Warn(&p, "too early") {
		t.Error("a pod whose UID is not known")
	}
	static := annotated("5", "static")
	static.Annotations[configHash] = hash
	x.Put(static)
	x.expect(t, hash, "static")
	// The kubelet replaces the object, for example after somebody has deleted it.
	for i, uid := range []string{"5", "6"} {
		if i > 0 {
			x.Delete("5")
			x.expect(t, hash, "")
			static.UID = uid
			x.Put(static)
			x.expect(t, hash, "static")
		}
		if !x.w.Warn(&p, "nonsense") {
			t.Error("Warn")
		}
		for len(x.Events()) <= i {
			time.Sleep(time.Millisecond)
		}
		if got := x.Events()[i].InvolvedObject; got.UID != uid || got.Name != "web-5" {
			t.Errorf("the event is about %+v, want UID %s", got, uid)
		}
	}
}

// The name of an event is one of Kubernetes, whatever a long name of a pod is cut at.
func TestEventsOfLongNames(t *testing.T) {
	x := start(t, "secret")
	go x.w.WriteEvents(t.Context())
	p := pod.Pod{Namespace: "shop", Name: strings.Repeat("a", 199) + "-" + strings.Repeat("b", 50), UID: "1"}
	if !x.w.Warn(&p, "nonsense") {
		t.Fatal("Warn")
	}
	for len(x.Events()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if name := x.Events()[0].Metadata.Name; strings.Contains(name, "-.") || len(name) > 253 {
		t.Errorf("%s, of %d bytes", name, len(name))
	}
}

func TestEventsAreBounded(t *testing.T) {
	w := &Watcher{events: make(chan event, maxEvents)}
	p := pod.Pod{Namespace: "shop", Name: "web-1", UID: "1"}
	n := 0
	for range 2 * maxEvents {
		if w.Warn(&p, strings.Repeat("x", 5000)) {
			n++
		}
	}
	if n != maxEvents || len((<-w.events).message) != maxMessage {
		t.Errorf("%d events wait", n)
	}
}

func TestALongMessageIsNotCutWithinACharacter(t *testing.T) {
	w := &Watcher{events: make(chan event, 1)}
	if !w.Warn(&pod.Pod{Namespace: "shop", Name: "web-1", UID: "1"}, "x"+strings.Repeat("é", maxMessage)) {
		t.Fatal("Warn")
	}
	if got := (<-w.events).message; !utf8.ValidString(got) || len(got) != maxMessage-1 {
		t.Errorf("%d bytes, which end in %q", len(got), got[len(got)-3:])
	}
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestKubeconfig(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	put(t, filepath.Join(dir, "token"), "from a file\n")
	const text = `apiVersion: v1
current-context: prod
contexts:
- {name: other, context: {cluster: x, user: x}}
- {name: prod, context: {cluster: main, user: node, namespace: default}}
clusters:
- name: main
  cluster: {server: "https://192.0.2.1:6443/base", tls-server-name: kubernetes, certificate-authority-data: Y2E=, extensions: [{name: x}]}
users:
- name: node
  user: {tokenFile: token}
`
	put(t, file, text)
	a, err := fromKubeconfig(file)
	if err != nil || a.server != "https://192.0.2.1:6443/base" || a.serverName != "kubernetes" || string(a.ca) != "ca" || a.tokenFile != filepath.Join(dir, "token") {
		t.Fatalf("%+v, %v", a, err)
	}
	r, _ := http.NewRequest("GET", a.server, nil)
	if err := a.authorize(r); err != nil || r.Header.Get("Authorization") != "Bearer from a file" {
		t.Errorf("%v, %v", r.Header, err)
	}
	for change, want := range map[string]string{
		"current-context: prod|current-context: gone": `no context is named "gone"`,
		"cluster: main, user|cluster: gone, user":     `no cluster is named "gone"`,
		"tokenFile: token|exec: {command: aws}":       "the key exec, which tcpilot does not support",
		"tokenFile: token|token: t, as: admin":        "the key as, which tcpilot does not support",
		"tokenFile: token|token: t, as-groups: [a]":   "the key as-groups, which",
		"tls-server|proxy-url: 192.0.2.2, tls-server": "the cluster's proxy-url is not the URL of a proxy",
		"tls-server|proxy-url: ftp://a, tls-server":   "the cluster's proxy-url is not the URL of a proxy",
		"Y2E=|%%":                      "not base64",
		"apiVersion: v1|apiVersion: [": "config:",
	} {
		from, to, _ := strings.Cut(change, "|")
		put(t, file, strings.Replace(text, from, to, 1))
		if _, err := fromKubeconfig(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", change, err)
		}
	}
	put(t, file, strings.Replace(text, "https://192.0.2.1:6443/base", "nonsense", 1))
	if _, err := Open(Options{Kubeconfig: file}); err == nil || !strings.Contains(err.Error(), "not the URL") {
		t.Errorf("%v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Open(Options{}); err == nil || !strings.Contains(err.Error(), "not in a pod") {
		t.Errorf("%v", err)
	}
}

// Requests go through the proxy that the kubeconfig names for the cluster.
func TestProxyOfTheKubeconfig(t *testing.T) {
	var asked string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		fmt.Fprint(w, `{"metadata": {"name": "n1"}, "spec": {"podCIDRs": ["10.1.0.0/24"]}}`)
	}))
	defer proxy.Close()
	file := filepath.Join(t.TempDir(), "config")
	put(t, file, fmt.Sprintf(`current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "http://192.0.2.1:6443", proxy-url: %q}}]
users: [{name: a, user: {token: t}}]
`, proxy.URL))
	n, err := ReadNode(t.Context(), file, "n1")
	if err != nil || len(n.PodCIDRs) != 1 || asked != "http://192.0.2.1:6443/api/v1/nodes/n1" {
		t.Errorf("%+v, %v; the proxy was asked for %q", n, err, asked)
	}
}
