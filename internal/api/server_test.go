package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/api/apitest"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// same compares two values by their JSON.
func same(t *testing.T, what string, got, want any) {
	t.Helper()
	g, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	w, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if string(g) != string(w) {
		t.Errorf("%s\n got %s\nwant %s", what, g, w)
	}
}

func TestClientMirrorsBackend(t *testing.T) {
	f := apitest.New()
	c := api.NewClient(apitest.Serve(t, f))
	defer c.Close()
	ctx := t.Context()

	status, err := c.Status(ctx)
	want, _ := f.Status(ctx)
	want.Counters.NameRules(f.Snap.Rules)
	want.Counters.Sort()
	want.Counters.ArmFailures, want.Counters.Controls = []metrics.ArmCount{}, map[string]int{}
	same(t, "status", status, want)
	if err != nil || status.Counters.Connections[3].Rule != "removed" {
		t.Errorf("rules are not named: %+v, %v", status.Counters.Connections, err)
	}
	snap, err := c.Snapshot(ctx)
	same(t, "snapshot", snap, f.Snap)
	checkErr(t, err)
	rules, err := c.Rules(ctx)
	same(t, "rules", rules.Rules, f.Snap.Rules)
	checkErr(t, err)
	paths, err := c.Paths(ctx, api.PathQuery{Prefix: netip.MustParsePrefix("192.0.2.9/32")})
	same(t, "paths", paths.Paths, f.Snap.Paths[:1])
	checkErr(t, err)
	req := api.ExplainRequest{Remote: netip.MustParseAddr("192.0.2.7"), RemotePort: 443, Cgroup: "/x", Incoming: true}
	got, err := c.Explain(ctx, req)
	wantE, _ := f.Explain(ctx, req)
	same(t, "explain", got, wantE)
	checkErr(t, err)
	if f.Asked != req {
		t.Errorf("asked for %+v, want %+v", f.Asked, req)
	}
	doctor, err := c.Doctor(ctx)
	same(t, "doctor", doctor, apitest.Doctor())
	checkErr(t, err)
	reload, err := c.Reload(ctx)
	wantR, _ := f.Reload(ctx)
	wantR.Removed = []string{}
	same(t, "reload", reload, wantR)
	checkErr(t, err)
	rolled, err := c.SetRollout(ctx, api.RolloutRequest{Rule: "default", Share: 0.1})
	if err != nil || rolled.Rule != "default" || rolled.Share != 0.1 || rolled.By != "operator" {
		t.Errorf("rollout: %+v, %v", rolled, err)
	}
	load, err := c.Load(ctx, api.LoadRequest{Name: "x", File: "/a.o", Cgroup: "/c"})
	if err != nil || load.Name != "x" || load.File != "/a.o" {
		t.Errorf("load: %+v, %v", load, err)
	}
	checkErr(t, c.Unload(ctx, "my-iw"))
	loaded, err := c.Loaded(ctx)
	same(t, "loaded", loaded, api.ProgramList{At: apitest.Now, Programs: f.Programs})
	checkErr(t, err)
	one, err := c.Get(ctx, api.LoadedResource("my-iw"))
	checkErr(t, err)
	same(t, "one program", json.RawMessage(one), f.Programs[0])
	if _, err := c.Get(ctx, api.LoadedResource("no/such")); !errors.As(err, new(*api.Error)) {
		t.Errorf("an unknown program: %v", err)
	}
	checkControls(t, c, f)
	f.AddPods()
	pods, err := c.Pods(ctx)
	same(t, "pods", pods, f.PodList)
	checkErr(t, err)
	synced, err := c.SyncPods(ctx)
	same(t, "sync of pods", synced, api.PodSync{Pods: 2, Refused: append(f.Stale, f.PodList.Refused...)})
	checkErr(t, err)
	checkErr(t, c.DetachPods(ctx))
	if !f.PodsDetached || f.Detached {
		t.Errorf("DetachPods: pods %v, all %v", f.PodsDetached, f.Detached)
	}
	checkErr(t, c.Detach(ctx))
	if !f.Detached {
		t.Error("Detach did not arrive")
	}
}

func checkControls(t *testing.T, c *api.Client, f *apitest.Fake) {
	t.Helper()
	list, err := c.Controls(t.Context())
	same(t, "congestion controls", list, api.ControlList{At: apitest.Now, Controls: f.CCs})
	checkErr(t, err)
	one, err := c.Get(t.Context(), api.ControlResource("tcpilot_bbr3"))
	checkErr(t, err)
	same(t, "one of them", json.RawMessage(one), f.CCs[1])
	load, err := c.LoadControl(t.Context(), api.LoadControlRequest{Name: "mine2", File: "/a.o", Auto: true})
	if err != nil || load.Name != "mine2" || load.Source != "/a.o" || !load.Auto || load.Rules == nil {
		t.Errorf("load: %+v, %v", load, err)
	}
	if u, err := c.UnloadControl(t.Context(), "tcpilot_bbr3"); err != nil || u.Connections != 12 {
		t.Errorf("unload: %+v, %v", u, err)
	}
	for what, err := range map[string]error{
		"show":   func() error { _, err := c.Get(t.Context(), api.ControlResource("no/such")); return err }(),
		"unload": func() error { _, err := c.UnloadControl(t.Context(), "tcpilot_ledbat"); return err }(),
		"load":   func() error { _, err := c.LoadControl(t.Context(), api.LoadControlRequest{Name: "nope"}); return err }(),
	} {
		var e *api.Error
		if !errors.As(err, &e) || e.Code != 404 || e.Hint == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func checkErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func TestErrorsKeepCodeAndHint(t *testing.T) {
	f := apitest.New()
	c := api.NewClient(apitest.Serve(t, f))
	for name, tt := range map[string]struct {
		err  error
		want api.Error
	}{
		"plain":    {errors.New("boom"), api.Error{Code: 500, Message: "boom"}},
		"wrapped":  {fmt.Errorf("reload: %w", api.Invalid("x.yaml:3:1: bad").WithHint("fix it")), api.Error{Code: 422, Message: "reload: x.yaml:3:1: bad", Hint: "fix it"}},
		"conflict": {api.Conflicts("name %s is taken", "x"), api.Error{Code: 409, Message: "name x is taken"}},
		"deadline": {context.DeadlineExceeded, api.Error{Code: 504, Message: "timed out: context deadline exceeded"}},
		"stopping": {context.Canceled, api.Error{Code: 503, Message: "stopped: context canceled"}},
	} {
		t.Run(name, func(t *testing.T) {
			f.Err = tt.err
			_, err := c.Reload(t.Context())
			var e *api.Error
			if !errors.As(err, &e) || *e != tt.want {
				t.Errorf("got %#v, want %#v", err, tt.want)
			}
			for _, err := range c.Stream(t.Context(), api.SampleFilter{}) {
				if !errors.As(err, &e) || *e != tt.want {
					t.Errorf("stream: got %#v, want %#v", err, tt.want)
				}
			}
		})
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	f := apitest.New()
	socket := apitest.Serve(t, f)
	for name, tt := range map[string]struct {
		method, target, body string
		code                 int
		want                 string
	}{
		"unknown path":      {"GET", "/v1/nope", "", 404, "no GET /v1/nope"},
		"other version":     {"GET", "/v2/status", "", 404, "this version"},
		"wrong method":      {"POST", "/v1/status", "", 404, "no POST"},
		"unknown parameter": {"GET", "/v1/paths?perfix=x", "", 400, `unknown parameter "perfix"`},
		"bad prefix":        {"GET", "/v1/paths?prefix=x", "", 400, "want an IP address or prefix"},
		"bad order":         {"GET", "/v1/paths?sort=size", "", 400, "want samples, recent"},
		"bad limit":         {"GET", "/v1/paths?limit=-1", "", 400, "want a number"},
		"no address":        {"GET", "/v1/explain", "", 400, "want a remote address"},
		"bad port":          {"GET", "/v1/explain?remote=::1&remote_port=65536", "", 400, "below 2^16"},
		"bad address":       {"GET", "/v1/explain?remote=example.com", "", 400, "want an IP address"},
		"bad direction":     {"GET", "/v1/explain?remote=::1&incoming=x", "", 400, "true or false"},
		"bad kind":          {"GET", "/v1/samples?kind=x", "", 400, "failed-connect"},
		"bad JSON":          {"POST", "/v1/programs", "{", 400, "request body"},
		"unknown key":       {"POST", "/v1/programs", `{"objekt":"x"}`, 400, "objekt"},
		"nothing to load":   {"POST", "/v1/programs", `{}`, 400, "want a file and a cgroup"},
		"no control":        {"POST", "/v1/cc", `{}`, 400, "want the name of a congestion control"},
		"no rule":           {"POST", "/v1/rollout", `{"share":0.5}`, 400, "want a rule"},
		"no share":          {"POST", "/v1/rollout", `{"rule":"a","share":1.5}`, 400, "share of 0 to 1"},
		"small share":       {"POST", "/v1/rollout", `{"rule":"a","share":0.0005}`, 400, "want 0, or 0.001 to 1"},
		"unknown rule":      {"POST", "/v1/rollout", `{"rule":"a","share":0.5}`, 404, "no rule"},
		"huge body":         {"POST", "/v1/programs", `{"file":"` + strings.Repeat("x", 70<<10), 413, "too large"},
		"no such program":   {"DELETE", "/v1/programs/none", "", 404, "no program"},
		"bad object":        {"POST", "/v1/programs", `{"file":"/etc/passwd","cgroup":"/"}`, 422, "not an eBPF object"},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := ask(t, socket, tt.method, tt.target, tt.body)
			var e struct{ Error, Hint string }
			if err := json.Unmarshal([]byte(body), &e); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			if code != tt.code || !strings.Contains(e.Error, tt.want) {
				t.Errorf("%d %q, want %d with %q", code, e.Error, tt.code, tt.want)
			}
		})
	}
}

// ask sends one request unchanged.
func ask(t *testing.T, socket, method, target, body string) (code int, answer string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", socket)
	}}}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://tcpilot"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, string(text)
}

func TestBeforeTheFirstSnapshot(t *testing.T) {
	f := apitest.New()
	f.Programs = nil
	h := api.NewServer(noSnapshot{f}, -1, slog.New(slog.DiscardHandler)).Handler(t.Context())
	for target, code := range map[string]int{"/v1/snapshot": 503, "/v1/paths": 503, "/v1/rules": 503, "/v1/status": 200, "/v1/programs": 200} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", target, nil))
		if w.Code != code {
			t.Errorf("GET %s: %d %s, want %d", target, w.Code, w.Body, code)
		}
		if target == "/v1/programs" && !strings.Contains(w.Body.String(), `"programs": []`) {
			t.Errorf("no programs are %s, want []", w.Body)
		}
	}
}

type noSnapshot struct{ *apitest.Fake }

func (noSnapshot) Snapshot() *engine.Snapshot { return nil }

func TestStream(t *testing.T) {
	f := apitest.New()
	c := api.NewClient(apitest.Serve(t, f))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stop := publish(t, f)
	var got []api.Sample
	for s, err := range c.Stream(ctx, api.SampleFilter{Kind: tcp.KindClose}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, s); len(got) == 3 {
			break
		}
	}
	stop()
	for _, s := range got {
		if s.Kind != "close" {
			t.Errorf("kind %s came through the filter", s.Kind)
		}
		if (s.Class == 2) != (s.Rule == "default") {
			t.Errorf("class %d is named %q", s.Class, s.Rule)
		}
	}
	cancel()
	for _, err := range c.Stream(ctx, api.SampleFilter{}) {
		t.Errorf("after the end: %v, want nothing", err)
	}
}

// publish publishes samples until stop is called.
func publish(t *testing.T, f *apitest.Fake) (stop func()) {
	t.Helper()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
				s := apitest.Sample(i)
				f.Hub.Publish(&s)
			}
		}
	}()
	return func() { close(quit); <-done }
}

// A reader that does not read must not block the publisher, and is told how many samples it
// missed.
func TestSlowReaderIsToldWhatItLost(t *testing.T) {
	f := apitest.New()
	conn, err := net.Dial("unix", apitest.Serve(t, f))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/samples HTTP/1.1\r\nHost: x\r\n\r\n")
	br := bufio.NewReader(conn)
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "\r\n" {
			break // the end of the header: the server has subscribed
		}
	}
	s := apitest.Sample(0)
	const n = 50_000 // far more than the buffers of the hub and the socket
	start := time.Now()
	for range n {
		f.Hub.Publish(&s)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("publishing took %s: it waited for the reader", d)
	}
	if f.Hub.Lost() == 0 {
		t.Fatal("nothing was lost: the test is too small")
	}
	var lost, got uint64
	d := json.NewDecoder(httputil.NewChunkedReader(br))
	for got+lost < n {
		var line api.Sample
		if err := d.Decode(&line); err != nil {
			t.Fatalf("after %d samples and %d lost: %v", got, lost, err)
		}
		if line.Kind == api.KindLost {
			lost += line.Lost
		} else {
			got++
		}
	}
	if lost != f.Hub.Lost() || got+lost != n {
		t.Errorf("%d samples and %d lost of %d; the hub lost %d", got, lost, n, f.Hub.Lost())
	}
}

func TestServerEndsStreamsWhenItStops(t *testing.T) {
	f := apitest.New()
	l, err := api.Listen(t.TempDir()+"/s", 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- api.NewServer(f, -1, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	stop := publish(t, f)
	defer stop()
	first := true
	for _, err := range api.NewClient(l.Addr().String()).Stream(t.Context(), api.SampleFilter{}) {
		if err != nil {
			t.Errorf("stream ends with %v, want its plain end", err)
		}
		if first {
			first = false
			cancel()
		}
	}
	select {
	case err := <-done:
		checkErr(t, err)
	case <-time.After(5 * time.Second):
		t.Fatal("Serve does not end")
	}
}

func TestNotRunning(t *testing.T) {
	socket := t.TempDir() + "/s"
	_, err := api.NewClient(socket).Status(t.Context())
	want := "tcpilot is not running (no socket at " + socket + "): start it with 'tcpilot run' as root"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	var e *api.NotRunningError
	if !errors.As(err, &e) || e.Stale {
		t.Errorf("got %#v", err)
	}
}

// An empty list is never null, so that clients can loop over it.
func TestEmptyListsAreNotNull(t *testing.T) {
	socket := apitest.Serve(t, empty{apitest.New()})
	for _, r := range []string{"GET /v1/status", "GET /v1/paths", "GET /v1/rules", "GET /v1/explain?remote=::1", "GET /v1/doctor",
		"POST /v1/reload", "GET /v1/programs", "GET /v1/cc"} {
		method, target, _ := strings.Cut(r, " ")
		code, text := ask(t, socket, method, target, "")
		// Maps of counts may be null: [] would be the wrong type.
		body := strings.NewReplacer(`"samples": null`, "", `"connections": null`, "", `"ignored": null`, "", `"decisions": null`, "", `"retired": null`, "", `"rto_min_barred": null`, "").Replace(text)
		if code != 200 || strings.Contains(body, "null") {
			t.Errorf("%s: %d\n%s", r, code, text)
		}
	}
}

// empty is a daemon without any data.
type empty struct{ *apitest.Fake }

func (empty) Snapshot() *engine.Snapshot                            { return &engine.Snapshot{} }
func (empty) Status(context.Context) (s api.Status, _ error)        { return s, nil }
func (empty) Doctor(context.Context, bool) (d api.Doctor, _ error)  { return d, nil }
func (empty) Reload(context.Context) (r api.ReloadResult, _ error)  { return r, nil }
func (empty) Loaded(context.Context) (l api.ProgramList, _ error)   { return l, nil }
func (empty) Controls(context.Context) (l api.ControlList, _ error) { return l, nil }
func (empty) Explain(context.Context, api.ExplainRequest) (e api.Explanation, _ error) {
	return e, nil
}
