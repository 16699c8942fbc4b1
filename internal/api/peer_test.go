package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// stub is a Backend that records the requests that change something.
type stub struct {
	Backend
	hub     Hub
	changes []string
	doctors []bool
}

func (s *stub) Doctor(_ context.Context, again bool) (Doctor, error) {
	s.doctors = append(s.doctors, again)
	return Doctor{}, nil
}

func (s *stub) PodName(uint64) string      { return "" }
func (s *stub) Snapshot() *engine.Snapshot { return &engine.Snapshot{} }
func (s *stub) Samples(ctx context.Context) (*Subscription, error) {
	return s.hub.Subscribe(ctx)
}
func (s *stub) Detach(context.Context) error {
	s.changes = append(s.changes, "detach")
	return nil
}
func (s *stub) DetachPods(context.Context) error {
	s.changes = append(s.changes, "detach-pods")
	return nil
}
func (s *stub) Reload(context.Context) (ReloadResult, error) {
	s.changes = append(s.changes, "reload")
	return ReloadResult{}, nil
}
func (s *stub) SetRollout(context.Context, RolloutRequest) (RuleRollout, error) {
	s.changes = append(s.changes, "rollout")
	return RuleRollout{}, nil
}
func (s *stub) Load(_ context.Context, r LoadRequest) (Loaded, error) {
	s.changes = append(s.changes, "load")
	return Loaded{}, nil
}
func (s *stub) Unload(context.Context, string) error {
	s.changes = append(s.changes, "unload")
	return nil
}
func (s *stub) LoadControl(context.Context, LoadControlRequest) (CongestionControl, error) {
	s.changes = append(s.changes, "cc load")
	return CongestionControl{}, nil
}
func (s *stub) UnloadControl(context.Context, string) (Unloaded, error) {
	s.changes = append(s.changes, "cc unload")
	return Unloaded{}, nil
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// both serves b on both sockets until the test ends.
func both(t *testing.T, b Backend, admins int, change ...func(*Server)) (socket string, log *syncBuffer) {
	t.Helper()
	log = &syncBuffer{}
	s := NewServer(b, admins, slog.New(slog.NewTextHandler(log, nil)))
	for _, f := range change {
		f(s)
	}
	socket = socketPath(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for path, serve := range map[string]func(context.Context, net.Listener) error{socket: s.Serve, ReadSocket(socket): s.ServeReadOnly} {
		l, err := Listen(path, 0o666, -1)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { _ = serve(ctx, l) })
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return socket, log
}

// change makes every request that changes something.
func change(ctx context.Context, c *Client) (errs []error) {
	_, reload := c.Reload(ctx)
	_, load := c.Load(ctx, LoadRequest{File: "/a.o", Cgroup: "/c"})
	_, ccLoad := c.LoadControl(ctx, LoadControlRequest{Name: "x"})
	_, ccUnload := c.UnloadControl(ctx, "x")
	_, rollout := c.SetRollout(ctx, RolloutRequest{Rule: "x", Share: 0.5})
	return []error{rollout, reload, load, ccLoad, ccUnload, c.Unload(ctx, "x"), c.DetachPods(ctx), c.Detach(ctx)}
}

// Through the socket for reading everything can be read, and nothing changed, not even by
// root.
func TestReadOnlySocket(t *testing.T) {
	b := &stub{}
	socket, log := both(t, b, -1)
	c := NewClient(ReadSocket(socket))
	if _, err := c.Rules(t.Context()); err != nil {
		t.Errorf("read: %v", err)
	}
	for i, err := range change(t.Context(), c) {
		var e *Error
		if !errors.As(err, &e) || e.Code != http.StatusForbidden || !strings.Contains(e.Hint, "administrators' socket") {
			t.Errorf("change %d: %v", i, err)
		}
	}
	if len(b.changes) != 0 {
		t.Errorf("changed: %v", b.changes)
	}
	if want := fmt.Sprintf("request=\"POST /v1/detach\" pid=%d uid=%d", os.Getpid(), os.Getuid()); !strings.Contains(log.String(), "API request refused") || !strings.Contains(log.String(), want) {
		t.Errorf("log has no %s:\n%s", want, log)
	}
}

// A caller that may only read cannot make the daemon repeat its tests of the kernel.
func TestDoctorOfReaders(t *testing.T) {
	b := &stub{}
	s := NewServer(b, -1, slog.New(slog.DiscardHandler))
	for _, who := range []caller{{uid: uint32(os.Getuid()), readOnly: true}, {uid: 4242, readOnly: true}, {uid: 4242}} {
		r := httptest.NewRequest("GET", pathDoctor, nil)
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, who))
		s.Handler(t.Context()).ServeHTTP(httptest.NewRecorder(), r)
	}
	if !slices.Equal(b.doctors, []bool{true, false, false}) {
		t.Errorf("asked again: %v, want only for the daemon's own user", b.doctors)
	}
}

// The daemon's own user may change things through the administrators' socket, and the log has
// the caller. The client chooses the socket.
func TestAdministratorsSocket(t *testing.T) {
	b := &stub{}
	socket, log := both(t, b, -1)
	c := NewClient(socket)
	defer c.Close()
	if _, err := c.Rules(t.Context()); err != nil {
		t.Errorf("read: %v", err)
	}
	for i, err := range change(t.Context(), c) {
		if err != nil {
			t.Errorf("change %d: %v", i, err)
		}
	}
	if len(b.changes) != 8 {
		t.Errorf("changed: %v", b.changes)
	}
	if want := fmt.Sprintf("request=\"DELETE /v1/programs/x\" pid=%d uid=%d", os.Getpid(), os.Getuid()); !strings.Contains(log.String(), want) {
		t.Errorf("log has no %s:\n%s", want, log)
	}
}

func TestMayChange(t *testing.T) {
	own := uint32(os.Getuid())
	for name, c := range map[string]struct {
		who    caller
		admins int
		want   string // in the message; empty: it may
	}{
		"root":             {caller{uid: 0}, -1, ""},
		"daemon's user":    {caller{uid: own}, -1, ""},
		"member":           {caller{uid: own + 1, groups: []uint32{7, 42}}, 42, ""},
		"not a member":     {caller{uid: own + 1, groups: []uint32{7}}, 42, fmt.Sprintf("uid %d may read", own+1)},
		"no group":         {caller{uid: own + 1, groups: []uint32{7, 1<<32 - 1}}, -1, "may read"},
		"root, to read":    {caller{uid: 0, readOnly: true}, -1, "for reading only"},
		"unknown":          {caller{unknown: errors.New("no credentials")}, -1, "not known"},
		"member, to read":  {caller{uid: own + 1, groups: []uint32{42}, readOnly: true}, 42, "for reading only"},
		"group named root": {caller{uid: own + 1, groups: []uint32{0}}, 0, ""},
	} {
		s := NewServer(nil, c.admins, slog.New(slog.DiscardHandler))
		switch e := s.mayChange(c.who); {
		case (e == nil) != (c.want == ""):
			t.Errorf("%s: %v", name, e)
		case e != nil && !strings.Contains(e.Message, c.want):
			t.Errorf("%s: %v, want %s", name, e, c.want)
		}
	}
}

// A request without known credentials changes nothing.
func TestUnknownCallerIsRefused(t *testing.T) {
	b := &stub{}
	s := NewServer(b, -1, slog.New(slog.DiscardHandler))
	r, _ := http.NewRequest("POST", pathDetach, nil)
	s.Handler(t.Context()).ServeHTTP(&largest{h: http.Header{}}, r)
	if len(b.changes) != 0 {
		t.Errorf("changed: %v", b.changes)
	}
}

// askAs runs this test binary as another user.
func askAs(t *testing.T, uid uint32, groups []uint32, socket string) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestHelperAsks$", "-test.v")
	cmd.Env = append(os.Environ(), "TCPILOT_ASK="+socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestHelperAsks is run as the other user.
func TestHelperAsks(t *testing.T) {
	socket := os.Getenv("TCPILOT_ASK")
	if socket == "" {
		t.Skip("runs as a helper of TestRootOtherUsers")
	}
	c := NewClient(socket)
	defer c.Close()
	_, err := c.Rules(t.Context())
	fmt.Printf("read: %v\n", err)
	err = c.Detach(t.Context())
	var e *Error
	fmt.Printf("detach: %v", err)
	if errors.As(err, &e) {
		fmt.Printf(" (%s)", e.Hint)
	}
	fmt.Println()
}

// A user that may only read gets answers, and an error with the reason for changes. A member
// of the administrators' group, by a supplementary group, may change things.
func TestRootOtherUsers(t *testing.T) {
	testenv.Root(t) // to be another user
	b := &stub{}
	socket, log := both(t, b, 4242)
	if err := os.Chmod(strings.TrimSuffix(socket, "/run/s"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := askAs(t, 65533, nil, socket)
	if !strings.Contains(out, "read: <nil>") || !strings.Contains(out, "detach: uid 65533 may read but not change anything (be root (sudo), or a member of the group that socket.admins names") {
		t.Errorf("somebody else:\n%s", out)
	}
	if len(b.changes) != 0 || !strings.Contains(log.String(), "uid=65533") {
		t.Errorf("changed: %v, log %s", b.changes, log)
	}
	out = askAs(t, 65533, []uint32{9, 4242}, socket)
	if !strings.Contains(out, "detach: <nil>") || len(b.changes) != 1 {
		t.Errorf("an administrator, changed %v:\n%s", b.changes, out)
	}
	// As in a real installation, others cannot even connect to the administrators' socket.
	if err := os.Chmod(socket, 0o600); err != nil {
		t.Fatal(err)
	}
	out = askAs(t, 65533, nil, socket)
	if !strings.Contains(out, "read: <nil>") || !strings.Contains(out, "detach: permission denied on "+socket+" (to change something be root") {
		t.Errorf("the socket is closed to somebody else:\n%s", out)
	}
	if err := os.Chmod(ReadSocket(socket), 0o600); err != nil {
		t.Fatal(err)
	}
	out = askAs(t, 65533, nil, socket)
	if !strings.Contains(out, "read: permission denied on ") {
		t.Errorf("both are closed to somebody else:\n%s", out)
	}
}

// A reader of a stream that does not read is disconnected after streamPatience, and its
// subscription ends.
func TestStalledReaderIsDisconnected(t *testing.T) {
	b := &stub{}
	socket, log := both(t, b, -1, func(s *Server) { s.patience = 100 * time.Millisecond })
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET "+pathSamples+" HTTP/1.1\r\nHost: tcpilot\r\n\r\n")
	watchers := func() int {
		if l := b.hub.subs.Load(); l != nil {
			return len(*l)
		}
		return 0
	}
	deadline := time.Now().Add(20 * time.Second)
	for watchers() == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	for watchers() != 0 {
		if time.Now().After(deadline) {
			t.Fatal("the reader took nothing for 20 s, and is still served")
		}
		b.hub.Publish(&tcp.Sample{Kind: tcp.KindClose})
	}
	for !strings.Contains(log.String(), "disconnected a reader of samples") {
		if time.Now().After(deadline) {
			t.Fatalf("log %s", log)
		}
		time.Sleep(time.Millisecond)
	}
}
