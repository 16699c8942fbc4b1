package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/httpserver"
)

// Limits of the server: all of its clients are on this host.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second // of a request's body
	askTimeout    = 10 * time.Second // for answers from memory
	workTimeout   = 60 * time.Second // for doctor, reload, load: they use the kernel
	idleTimeout   = 2 * time.Minute
	stopTimeout   = 2 * time.Second // for answers in progress when the daemon stops
	maxHeader     = 16 << 10        // bytes
	maxBody       = 64 << 10        // bytes
	// streamPatience is the longest time for which a reader of a stream may stop reading after its
	// buffers are full. It loses samples during that time.
	streamPatience = 15 * time.Second
)

// Server answers for a Backend.
type Server struct {
	backend Backend
	log     *slog.Logger
	now     func() time.Time
	// admins is the group whose members may change something, -1 for none.
	admins   int
	patience time.Duration // with readers of streams
}

// NewServer returns a server of b. Members of the group admins may change
// something, as root and the user of this process may; -1 is none.
func NewServer(b Backend, admins int, log *slog.Logger) *Server {
	return &Server{backend: b, log: log, now: time.Now, admins: admins, patience: streamPatience}
}

// Serve answers on l until ctx ends, finishes the requests in progress, and closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return s.serve(ctx, l, false) }

// ServeReadOnly is Serve for a socket through which nobody can change anything.
func (s *Server) ServeReadOnly(ctx context.Context, l net.Listener) error {
	return s.serve(ctx, l, true)
}

func (s *Server) serve(ctx context.Context, l net.Listener, readOnly bool) error {
	// Streams end with this context; other requests may finish.
	streams, stopStreams := context.WithCancel(context.WithoutCancel(ctx))
	defer stopStreams()
	srv := &http.Server{
		Handler:           s.Handler(streams),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return withCaller(ctx, c, readOnly) },
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	srv.RegisterOnShutdown(stopStreams)
	return httpserver.Serve(ctx, srv, l, stopTimeout)
}

// Handler routes the requests; streams end when ctx does.
func (s *Server) Handler(ctx context.Context) http.Handler {
	b := s.backend
	mux := http.NewServeMux()
	change := func(pattern string, h http.HandlerFunc) { mux.HandleFunc(pattern, s.change(h)) }
	mux.HandleFunc("GET "+pathStatus, answer(askTimeout, s.status))
	mux.HandleFunc("GET "+pathSnapshot, answer(askTimeout, func(context.Context, *http.Request) (*engine.Snapshot, error) {
		return s.snapshot()
	}))
	mux.HandleFunc("GET "+pathPaths, answer(askTimeout, s.paths))
	mux.HandleFunc("GET "+pathRules, answer(askTimeout, s.rules))
	mux.HandleFunc("GET "+pathExplain, answer(askTimeout, s.explain))
	mux.HandleFunc("GET "+pathDoctor, answer(workTimeout, s.doctor))
	mux.HandleFunc("GET "+pathSamples, func(w http.ResponseWriter, r *http.Request) { s.samples(ctx, w, r) })
	change("POST "+pathReload, answer(workTimeout, s.reload))
	change("POST "+pathDetach, answer(workTimeout, func(ctx context.Context, _ *http.Request) (struct{}, error) {
		return struct{}{}, b.Detach(ctx)
	}))
	change("POST "+pathRollout, answer(workTimeout, s.setRollout))
	mux.HandleFunc("GET "+pathLoaded, answer(askTimeout, s.loaded))
	mux.HandleFunc("GET "+pathLoaded+"/{name}", answer(askTimeout, s.loadedOne))
	change("POST "+pathLoaded, answer(workTimeout, s.load))
	change("DELETE "+pathLoaded+"/{name}", answer(workTimeout, func(ctx context.Context, r *http.Request) (struct{}, error) {
		return struct{}{}, b.Unload(ctx, r.PathValue("name"))
	}))
	mux.HandleFunc("GET "+pathPods, answer(askTimeout, s.pods))
	change("POST "+pathPodSync, answer(workTimeout, s.syncPods))
	change("POST "+pathPodDetach, answer(workTimeout, func(ctx context.Context, _ *http.Request) (struct{}, error) {
		return struct{}{}, b.DetachPods(ctx)
	}))
	mux.HandleFunc("GET "+pathControls, answer(workTimeout, s.controls))
	mux.HandleFunc("GET "+pathControls+"/{name}", answer(workTimeout, s.control))
	change("POST "+pathControls, answer(workTimeout, s.loadControl))
	change("DELETE "+pathControls+"/{name}", answer(workTimeout, func(ctx context.Context, r *http.Request) (Unloaded, error) {
		return b.UnloadControl(ctx, r.PathValue("name"))
	}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, NotFound("no %s %s in this version of the API", r.Method, r.URL.Path))
	})
	return mux
}

// answer makes a handler of a function that returns what to send.
func answer[T any](timeout time.Duration, f func(context.Context, *http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		v, err := f(ctx, r)
		// A client that does not read its answer must not block the server.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout))
		if err != nil {
			writeError(w, asError(err))
			return
		}
		writeJSON(w, http.StatusOK, v)
	}
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if rest, paths, long := splitPaths(v); long {
		_ = writeLong(w, rest, paths) // errors are ignored: see below
		return
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	// The status is already sent; only the client's connection can fail now.
	_ = e.Encode(v)
}

func writeError(w http.ResponseWriter, e *Error) { writeJSON(w, e.Code, e) }

func decode[T any](r *http.Request) (v T, err error) {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return v, &Error{Code: http.StatusRequestEntityTooLarge, Message: "request body: " + err.Error()}
		}
		return v, malformed("request body: %v", err)
	}
	return v, nil
}

func (s *Server) status(ctx context.Context, _ *http.Request) (Status, error) {
	st, err := s.backend.Status(ctx)
	if err != nil {
		return st, err
	}
	st.Counters.Sort()
	notNull(&st.Counters.Connections)
	notNull(&st.Counters.Decisions)
	notNull(&st.Counters.SetErrors)
	notNull(&st.Counters.ArmFailures)
	notNull(&st.Counters.Events)
	notNull(&st.Counters.Programs)
	mapNotNull(&st.Counters.Controls)
	notNull(&st.Features)
	notNull(&st.Rollouts)
	armsNotNull(&st.Arms)
	notNull(&st.Yields)
	notNull(&st.Loaded)
	notNull(&st.Degraded)
	return st, nil
}

// notNull makes an empty list appear as [], so that clients can loop over it.
func notNull[T any](list *[]T) {
	if *list == nil {
		*list = []T{}
	}
}

// mapNotNull makes an empty map appear as {}.
func mapNotNull[K comparable, V any](m *map[K]V) {
	if *m == nil {
		*m = map[K]V{}
	}
}

func armsNotNull(a *engine.Arms) {
	notNull(&a.Active)
	mapNotNull(&a.Retired)
	mapNotNull(&a.Missing)
}

// doctor repeats the tests of the kernel only for callers that may change something, on
// either socket, because clients read through the one for reading.
func (s *Server) doctor(ctx context.Context, r *http.Request) (Doctor, error) {
	who := callerOf(r)
	who.readOnly = false
	d, err := s.backend.Doctor(ctx, s.mayChange(who) == nil)
	notNull(&d.Features)
	notNull(&d.Options)
	notNull(&d.PodDevices)
	armsNotNull(&d.Arms)
	notNull(&d.Conflicts)
	return d, err
}

func (s *Server) reload(ctx context.Context, _ *http.Request) (ReloadResult, error) {
	r, err := s.backend.Reload(ctx)
	notNull(&r.Added)
	notNull(&r.Removed)
	notNull(&r.Changed)
	return r, err
}

func (s *Server) setRollout(ctx context.Context, r *http.Request) (RuleRollout, error) {
	q, err := decode[RolloutRequest](r)
	if err != nil {
		return RuleRollout{}, err
	}
	if q.Rule == "" || !(q.Share >= 0 && q.Share <= 1) {
		return RuleRollout{}, malformed("rollout: want a rule, and a share of 0 to 1")
	}
	if q.Share > 0 && q.Share < MinRollout {
		return RuleRollout{}, malformed("rollout: share %v: want 0, or %v to 1", q.Share, MinRollout)
	}
	return s.backend.SetRollout(ctx, q)
}

func (s *Server) snapshot() (*engine.Snapshot, error) {
	if snap := s.backend.Snapshot(); snap != nil {
		return snap, nil
	}
	return nil, Unavailable("the engine has not decided anything yet").WithHint("try again in a second")
}

func (s *Server) rules(context.Context, *http.Request) (RuleList, error) {
	snap, err := s.snapshot()
	if err != nil {
		return RuleList{}, err
	}
	l := RuleList{At: snap.At, Mode: snap.Mode, Rules: snap.Rules}
	notNull(&l.Rules)
	return l, nil
}

func (s *Server) paths(_ context.Context, r *http.Request) (PathList, error) {
	q, err := parsePathQuery(r.URL.Query())
	if err != nil {
		return PathList{}, err
	}
	snap, err := s.snapshot()
	if err != nil {
		return PathList{}, err
	}
	return q.Select(snap)
}

func (s *Server) explain(ctx context.Context, r *http.Request) (Explanation, error) {
	q, err := parseExplain(r.URL.Query())
	if err != nil {
		return Explanation{}, err
	}
	e, err := s.backend.Explain(ctx, q)
	notNull(&e.Fields)
	notNull(&e.Arms)
	return e, err
}

func (s *Server) loaded(ctx context.Context, _ *http.Request) (ProgramList, error) {
	l, err := s.backend.Loaded(ctx)
	notNull(&l.Programs)
	return l, err
}

func (s *Server) loadedOne(ctx context.Context, r *http.Request) (Loaded, error) {
	l, err := s.loaded(ctx, r)
	if err != nil {
		return Loaded{}, err
	}
	name := r.PathValue("name")
	for _, p := range l.Programs {
		if p.Name == name {
			return p, nil
		}
	}
	return Loaded{}, NotFound("no program %q is loaded", name).WithHint("see 'tcpilot prog list'")
}

func (s *Server) pods(ctx context.Context, _ *http.Request) (PodList, error) {
	l, err := s.backend.Pods(ctx)
	notNull(&l.Pods)
	notNull(&l.Refused)
	for i := range l.Pods {
		notNull(&l.Pods[i].Rules)
	}
	return l, err
}

func (s *Server) syncPods(ctx context.Context, _ *http.Request) (PodSync, error) {
	r, err := s.backend.SyncPods(ctx)
	notNull(&r.Refused)
	return r, err
}

func (s *Server) load(ctx context.Context, r *http.Request) (Loaded, error) {
	q, err := decode[LoadRequest](r)
	if err != nil {
		return Loaded{}, err
	}
	if q.File == "" || q.Cgroup == "" {
		return Loaded{}, malformed("load: want a file and a cgroup")
	}
	return s.backend.Load(ctx, q)
}

func (s *Server) controls(ctx context.Context, _ *http.Request) (ControlList, error) {
	l, err := s.backend.Controls(ctx)
	notNull(&l.Controls)
	for i := range l.Controls {
		l.Controls[i].notNull()
	}
	return l, err
}

func (c *CongestionControl) notNull() {
	notNull(&c.Rules)
	notNull(&c.Programs)
}

func (s *Server) control(ctx context.Context, r *http.Request) (CongestionControl, error) {
	l, err := s.controls(ctx, r)
	if err != nil {
		return CongestionControl{}, err
	}
	name := r.PathValue("name")
	for _, c := range l.Controls {
		if c.Name == name {
			return c, nil
		}
	}
	return CongestionControl{}, NotFound("no congestion control %q", name).WithHint("see 'tcpilot cc list'; those of the kernel are in 'tcpilot status'")
}

func (s *Server) loadControl(ctx context.Context, r *http.Request) (CongestionControl, error) {
	q, err := decode[LoadControlRequest](r)
	if err != nil {
		return CongestionControl{}, err
	}
	if q.Name == "" {
		return CongestionControl{}, malformed("load: want the name of a congestion control")
	}
	c, err := s.backend.LoadControl(ctx, q)
	c.notNull()
	return c, err
}
