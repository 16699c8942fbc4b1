package api

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
)

func TestDialErrorsSayWhatToDo(t *testing.T) {
	c := NewClient("/run/x.sock")
	for name, tt := range map[string]struct {
		errno syscall.Errno
		want  string
	}{
		"missing": {syscall.ENOENT, "tcpilot is not running (no socket at /run/x.sock): start it with 'tcpilot run' as root"},
		"stale":   {syscall.ECONNREFUSED, "tcpilot is not running (nobody listens on /run/x.sock): start it with 'tcpilot run' as root"},
		"denied":  {syscall.EACCES, "permission denied on /run/x.sock"},
		"other":   {syscall.EPIPE, "ask tcpilot at /run/x.sock: dial unix: broken pipe"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.explain(&url.Error{Op: "Get", URL: "http://tcpilot/v1/status", Err: &net.OpError{Op: "dial", Net: "unix", Err: tt.errno}}, http.MethodGet)
			if err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			var e *Error
			if errors.As(err, &e) && (e.Code != http.StatusForbidden || !strings.Contains(e.Hint, "group")) {
				t.Errorf("got %#v", e)
			}
		})
	}
}

func TestStaleSocketIsNotRunning(t *testing.T) {
	path := socketPath(t)
	l, err := Listen(path, 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	l.(*listener).UnixListener.Close()
	var e *NotRunningError
	if _, err := NewClient(path).Rules(t.Context()); !errors.As(err, &e) || !e.Stale {
		t.Errorf("got %v", err)
	}
}

func TestAnswerOfAnotherServer(t *testing.T) {
	path := socketPath(t)
	l, err := Listen(path, 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == pathStatus {
			http.Error(w, "teapot", http.StatusTeapot)
			return
		}
		_, _ = w.Write([]byte("<html>"))
	})}
	go srv.Serve(l)
	defer srv.Close()
	c := NewClient(path)
	if _, err := c.Status(t.Context()); err == nil || err.Error() != "GET /v1/status: 418 I'm a teapot" {
		t.Errorf("error %v", err)
	}
	if _, err := c.Rules(t.Context()); err == nil || !strings.Contains(err.Error(), "read answer of /v1/rules") {
		t.Errorf("error %v", err)
	}
	if _, err := c.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "read answer of /v1/reload") {
		t.Errorf("error %v", err)
	}
	for _, err := range c.Stream(t.Context(), SampleFilter{}) {
		if err == nil || !strings.Contains(err.Error(), "read samples") {
			t.Errorf("error %v", err)
		}
	}
}
