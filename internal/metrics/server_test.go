package metrics

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestServe(t *testing.T) {
	r, err := NewRegistry(NewCollector(full(3), "1.0", topPaths))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, Handler(r, log), log) }()

	for path, tt := range map[string]struct {
		code int
		want []string
	}{
		"/metrics": {200, []string{"tcpilot_path_srtt_seconds{prefix=\"10.0.0.0/24\",rule=\"web\",scope=\"\"} 0.015", "go_goroutines", "process_resident_memory_bytes"}},
		"/":        {200, []string{"metrics"}},
		"/other":   {404, nil},
	} {
		resp, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tt.code {
			t.Errorf("GET %s: %s, %v; want %d", path, resp.Status, err, tt.code)
		}
		for _, w := range tt.want {
			if !strings.Contains(string(body), w) {
				t.Errorf("GET %s lacks %q", path, w)
			}
		}
	}

	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Serve = %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Serve does not end with its context")
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("still listening")
	}
}
