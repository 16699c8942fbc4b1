package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"
)

// server is an API server and how it is reached.
type server struct {
	access access
	client *http.Client
	base   *url.URL
}

// openServer reads how the API server is reached: by a kubeconfig file; empty: this process is in a pod of the cluster. It does not
// connect.
func openServer(kubeconfig string) (s *server, err error) {
	s = new(server)
	if kubeconfig != "" {
		s.access, err = fromKubeconfig(kubeconfig)
	} else {
		s.access, err = inCluster()
	}
	if err == nil {
		s.client, s.base, err = s.access.client()
	}
	if err != nil {
		return nil, fmt.Errorf("reach the API server of Kubernetes: %w", err)
	}
	return s, nil
}

// resource is a kind of objects that is followed.
type resource struct {
	what            string // for errors
	path            string
	selector        string // fieldSelector; empty: all
	listAs, watchAs string // Accept, of a list and of changes
	// listed begins a list: add is called with each object, and done after the last. changed is called with each that was added,
	// modified or deleted since.
	listed  func() (add func(item json.RawMessage) error, done func())
	changed func(kind string, item json.RawMessage) error
}

const (
	// pageSize bounds one answer of a list.
	pageSize = 500
	// watchTime is how long the API server keeps one watch open, and watchSlack how much longer it may take.
	watchTime  = 5 * time.Minute
	watchSlack = 30 * time.Second
	maxError   = 4 << 10 // bytes read of an answer that refuses a request
	// shortWatch is the least duration of a watch. One that ends earlier without an error was probably refused
	// by a proxy, and counts as failed.
	shortWatch = time.Second
	// gonePause is the least time between two lists that are read without a pause because the API server has
	// forgotten changes. If it forgets them more often, Run returns an error as for other failures.
	gonePause = 10 * time.Second
)

// errGone means that the API server has forgotten the changes since the last one that was read.
var errGone = errors.New("resource version too old (410)")

// follow follows the objects until ctx ends, or until an error.
func (s *server) follow(ctx context.Context, r *resource) error {
	var forgot time.Time
	for {
		version, err := s.list(ctx, r)
		for err == nil {
			begun := time.Now()
			if version, err = s.watch(ctx, r, version); err == nil && time.Since(begun) < shortWatch {
				err = errors.New("a watch ended at once")
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, errGone) || time.Since(forgot) < gonePause {
			// Not %w: the daemon's supervisor ends the daemon on os.ErrClosed, which it takes for a
			// closed handle of its own.
			return fmt.Errorf("follow %s at the API server of Kubernetes: %v", r.what, err)
		}
		forgot = time.Now()
	}
}

// list reads all objects.
func (s *server) list(ctx context.Context, r *resource) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	add, done := r.listed()
	for next := ""; ; {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		if next != "" {
			query.Set("continue", next)
		}
		body, err := s.get(ctx, r, query, r.listAs)
		if err != nil {
			return "", err
		}
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []json.RawMessage `json:"items"`
		}
		err = errors.Join(json.NewDecoder(body).Decode(&page), body.Close())
		if err != nil {
			return "", fmt.Errorf("read list: %w", err)
		}
		for _, item := range page.Items {
			if err := add(item); err != nil {
				return "", fmt.Errorf("read list: %w", err)
			}
		}
		version, next = page.Metadata.ResourceVersion, page.Metadata.Continue
		if next == "" {
			break
		}
	}
	done()
	return version, nil
}

// watch follows changes since version until the API server ends the answer.
func (s *server) watch(ctx context.Context, r *resource, version string) (next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime+watchSlack)
	defer cancel()
	body, err := s.get(ctx, r, url.Values{"watch": {"1"}, "resourceVersion": {version}, "allowWatchBookmarks": {"true"},
		"timeoutSeconds": {strconv.Itoa(int(watchTime / time.Second))}}, r.watchAs)
	if err != nil {
		return "", err
	}
	defer body.Close()
	for d := json.NewDecoder(body); ; {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		err := d.Decode(&e)
		if errors.Is(err, io.EOF) {
			return version, nil
		}
		if err != nil {
			return "", fmt.Errorf("read change: %w", err)
		}
		if e.Type == "ERROR" {
			return "", statusError(0, e.Object)
		}
		var m struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
		}
		err = json.Unmarshal(e.Object, &m)
		if err == nil && e.Type != "BOOKMARK" {
			err = r.changed(e.Type, e.Object)
		}
		if err != nil {
			return "", fmt.Errorf("read change: %w", err)
		}
		if m.Metadata.ResourceVersion != "" {
			version = m.Metadata.ResourceVersion
		}
	}
}

// get asks for objects in a form.
func (s *server) get(ctx context.Context, r *resource, query url.Values, as string) (io.ReadCloser, error) {
	if r.selector != "" {
		query.Set("fieldSelector", r.selector)
	}
	return s.do(ctx, http.MethodGet, r.path, query, as, nil)
}

// do sends a request with these contents.
func (s *server) do(ctx context.Context, method, at string, query url.Values, accept string, body []byte) (io.ReadCloser, error) {
	u := *s.base
	u.Path, u.RawQuery = path.Join("/", u.Path, at), query.Encode()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("User-Agent", "tcpilot")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if err := s.access.authorize(r); err != nil {
		return nil, err
	}
	return s.send(r)
}

// send sends a request, and returns the body of an answer that is no error.
func (s *server) send(r *http.Request) (io.ReadCloser, error) {
	answer, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 == 2 {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxError))
	return nil, statusError(answer.StatusCode, text)
}

// apiError is an answer that says why a request was refused.
type apiError struct {
	code    int
	message string
}

func (e *apiError) Error() string {
	switch e.code {
	case http.StatusUnauthorized:
		return "the API server does not accept the credentials (401): " + e.message
	case http.StatusForbidden:
		return "not allowed (403), the service account has to get, list and watch pods, for the main plugin also nodes, and to create events: " + e.message
	}
	return fmt.Sprintf("the API server answers %d: %s", e.code, e.message)
}

// statusError reads a Status object (k8s.io/apimachinery/pkg/apis/meta/v1); code is that of the answer, 0 if it is in
// the object.
func statusError(code int, text []byte) error {
	var status struct {
		Message string `json:"message"`
		Code    int    `json:"code"`
	}
	if json.Unmarshal(text, &status) != nil || status.Message == "" {
		status.Message = fmt.Sprintf("%.200q", text)
	}
	if code == 0 {
		code = status.Code
	}
	if code == http.StatusGone {
		return fmt.Errorf("%w: %s", errGone, status.Message)
	}
	return &apiError{code, status.Message}
}
