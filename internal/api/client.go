package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
)

// NotRunningError means that no daemon listens.
type NotRunningError struct {
	Socket string
	Stale  bool // the socket is there, but nobody listens on it
}

func (e *NotRunningError) Error() string {
	why := "no socket at " + e.Socket
	if e.Stale {
		why = "nobody listens on " + e.Socket
	}
	return "tcpilot is not running (" + why + "): start it with 'tcpilot run' as root"
}

// Client talks to a daemon. It is safe for concurrent use.
type Client struct {
	socket string
	reader *http.Client // by the socket for reading, if it exists
	admin  *http.Client
}

// ReadSocket is the path of the socket for reading that goes with the
// administrators'.
func ReadSocket(socket string) string {
	if base, ok := strings.CutSuffix(socket, ".sock"); ok {
		return base + "-read.sock"
	}
	return socket + "-read"
}

// NewClient returns a client of the daemon at socket, the administrators' one. Requests that
// only read use the socket for reading; socket may be that one as well. The client connects
// when it is used.
func NewClient(socket string) *Client {
	return &Client{socket: socket, reader: httpClient(ReadSocket(socket), socket), admin: httpClient(socket)}
}

// Close drops idle connections.
func (c *Client) Close() {
	c.reader.CloseIdleConnections()
	c.admin.CloseIdleConnections()
}

// httpClient connects to the first socket that accepts the connection.
func httpClient(sockets ...string) *http.Client {
	d := net.Dialer{Timeout: headerTimeout}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var worst error
		for _, s := range sockets {
			c, err := d.DialContext(ctx, "unix", s)
			if err == nil {
				return c, nil
			}
			if worst == nil || errorDetail(err) >= errorDetail(worst) {
				worst = &dialError{s, err}
			}
		}
		return nil, worst
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConns: 1, IdleConnTimeout: time.Second}}
}

// dialError says which socket could not be used.
type dialError struct {
	socket string
	err    error
}

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// errorDetail ranks the errors of dial by how much they tell about the daemon.
func errorDetail(err error) int {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0
	case errors.Is(err, syscall.ECONNREFUSED):
		return 1
	case errors.Is(err, fs.ErrPermission):
		return 3
	}
	return 2
}

// Resource is something that can be read: its path and query.
type Resource string

// The resources for Get.
const (
	ResourceStatus   Resource = pathStatus
	ResourceSnapshot Resource = pathSnapshot
	ResourceRules    Resource = pathRules
	ResourceDoctor   Resource = pathDoctor
	ResourceLoaded   Resource = pathLoaded
	ResourceControls Resource = pathControls
	ResourcePods     Resource = pathPods
)

// LoadedResource is one of the users' own programs.
func LoadedResource(name string) Resource { return Resource(loadedPath(name)) }

func loadedPath(name string) string { return pathLoaded + "/" + url.PathEscape(name) }

// ControlResource is one congestion control.
func ControlResource(name string) Resource { return Resource(controlPath(name)) }

func controlPath(name string) string { return pathControls + "/" + url.PathEscape(name) }

// Resource is the selected paths.
func (r PathQuery) Resource() Resource { return resource(pathPaths, r.values()) }

// Resource is the explanation.
func (r ExplainRequest) Resource() Resource { return resource(pathExplain, r.values()) }

func resource(path string, v url.Values) Resource {
	if q := v.Encode(); q != "" {
		path += "?" + q
	}
	return Resource(path)
}

// Get returns the JSON document of r.
func (c *Client) Get(ctx context.Context, r Resource) ([]byte, error) {
	return c.do(ctx, http.MethodGet, string(r), nil)
}

func get[T any](ctx context.Context, c *Client, r Resource) (v T, err error) {
	b, err := c.Get(ctx, r)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("read answer of %s: %w", r, err)
	}
	return v, nil
}

// Status says what the daemon is and has done.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return get[Status](ctx, c, ResourceStatus)
}

// Snapshot returns the engine's state, without the keys of paths.
func (c *Client) Snapshot(ctx context.Context) (*engine.Snapshot, error) {
	return get[*engine.Snapshot](ctx, c, ResourceSnapshot)
}

// Rules lists the rules in force.
func (c *Client) Rules(ctx context.Context) (RuleList, error) {
	return get[RuleList](ctx, c, ResourceRules)
}

// Paths lists the selected paths.
func (c *Client) Paths(ctx context.Context, q PathQuery) (PathList, error) {
	return get[PathList](ctx, c, q.Resource())
}

// Explain says what a connection would get.
func (c *Client) Explain(ctx context.Context, r ExplainRequest) (Explanation, error) {
	return get[Explanation](ctx, c, r.Resource())
}

// Doctor says what the kernel lets the daemon do.
func (c *Client) Doctor(ctx context.Context) (Doctor, error) {
	return get[Doctor](ctx, c, ResourceDoctor)
}

// Loaded lists the users' own programs.
func (c *Client) Loaded(ctx context.Context) (ProgramList, error) {
	return get[ProgramList](ctx, c, ResourceLoaded)
}

// Reload makes the daemon read its configuration again.
func (c *Client) Reload(ctx context.Context) (r ReloadResult, err error) {
	return post[ReloadResult](ctx, c, pathReload, nil)
}

// Detach makes the daemon undo everything and end.
func (c *Client) Detach(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, pathDetach, nil)
	return err
}

// SetRollout changes the rollout of a rule until the next reload.
func (c *Client) SetRollout(ctx context.Context, r RolloutRequest) (RuleRollout, error) {
	return post[RuleRollout](ctx, c, pathRollout, r)
}

// Load attaches a user's own object.
func (c *Client) Load(ctx context.Context, r LoadRequest) (Loaded, error) {
	return post[Loaded](ctx, c, pathLoaded, r)
}

// Unload detaches a user's own object.
func (c *Client) Unload(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, loadedPath(name), nil)
	return err
}

// Controls lists tcpilot's own congestion controls and those of users.
func (c *Client) Controls(ctx context.Context) (ControlList, error) {
	return get[ControlList](ctx, c, ResourceControls)
}

// LoadControl loads a congestion control.
func (c *Client) LoadControl(ctx context.Context, r LoadControlRequest) (CongestionControl, error) {
	return post[CongestionControl](ctx, c, pathControls, r)
}

// UnloadControl unloads a congestion control from the kernel.
func (c *Client) UnloadControl(ctx context.Context, name string) (u Unloaded, err error) {
	b, err := c.do(ctx, http.MethodDelete, controlPath(name), nil)
	if err != nil {
		return u, err
	}
	if err := json.Unmarshal(b, &u); err != nil {
		return u, fmt.Errorf("read answer of %s: %w", controlPath(name), err)
	}
	return u, nil
}

// Pods lists the pods of the daemon's host.
func (c *Client) Pods(ctx context.Context) (PodList, error) {
	return get[PodList](ctx, c, ResourcePods)
}

// SyncPods makes the daemon read the records of pods.
func (c *Client) SyncPods(ctx context.Context) (PodSync, error) {
	return post[PodSync](ctx, c, pathPodSync, nil)
}

// DetachPods makes the daemon remove its programs from the devices of pods.
func (c *Client) DetachPods(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, pathPodDetach, nil)
	return err
}

func post[T any](ctx context.Context, c *Client, path string, body any) (v T, err error) {
	b, err := c.do(ctx, http.MethodPost, path, body)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("read answer of %s: %w", path, err)
	}
	return v, nil
}

// Stream returns samples as they arrive, until ctx ends or the daemon stops. The error, if
// any, comes last with a zero Sample; the end of ctx is not an error.
func (c *Client) Stream(ctx context.Context, f SampleFilter) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		body, err := c.open(ctx, f)
		if err != nil {
			if ctx.Err() == nil {
				yield(Sample{}, err)
			}
			return
		}
		defer body.Close()
		d := json.NewDecoder(body)
		for {
			var line Sample
			if err := d.Decode(&line); err != nil {
				if ctx.Err() == nil && !errors.Is(err, io.EOF) {
					yield(Sample{}, fmt.Errorf("read samples: %w", err))
				}
				return
			}
			if !yield(line, nil) {
				return
			}
		}
	}
}

func (c *Client) open(ctx context.Context, f SampleFilter) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodGet, string(resource(pathSamples, f.values())), nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// do returns the body of an answer, or the error that it contains.
func (c *Client) do(ctx context.Context, method, path string, body any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, workTimeout+stopTimeout)
	defer cancel()
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", path, err)
	}
	return b, nil
}

func (c *Client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		in = bytes.NewReader(b)
	}
	// The host is the daemon at the other end of the socket, whatever its name.
	req, err := http.NewRequestWithContext(ctx, method, "http://tcpilot"+path, in)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	by := c.admin
	if method == http.MethodGet {
		by = c.reader
	}
	resp, err := by.Do(req)
	if err != nil {
		return nil, c.explain(err, method)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	e := &Error{Code: resp.StatusCode}
	if json.Unmarshal(b, e) != nil || e.Message == "" {
		e.Message = fmt.Sprintf("%s %s: %s", method, path, resp.Status)
	}
	return nil, e
}

// explain turns an error of dial into one that tells what to do.
func (c *Client) explain(err error, method string) error {
	socket := c.socket
	var de *dialError
	if errors.As(err, &de) {
		socket = de.socket
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &NotRunningError{Socket: socket}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &NotRunningError{Socket: socket, Stale: true}
	case errors.Is(err, fs.ErrPermission):
		hint := "to change something be root (sudo), or a member of the group that socket.admins names"
		if method == http.MethodGet {
			hint = "to read be root (sudo), or a member of the group that socket.read.group names"
		}
		return &Error{Code: http.StatusForbidden, Message: "permission denied on " + socket,
			Hint: fmt.Sprintf("%s in the configuration (you are uid %d)", hint, os.Getuid())}
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // the URL's host is only a placeholder
	}
	return fmt.Errorf("ask tcpilot at %s: %w", socket, err)
}
