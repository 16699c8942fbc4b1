package load

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// Each flow over HTTP has a connection of its own. It counts as delivered only if it got
// the file in its full size.
func TestFlowsOverHTTP(t *testing.T) {
	var mu sync.Mutex
	clients := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		clients[r.RemoteAddr]++
		mu.Unlock()
		switch {
		case r.URL.Path != "/file":
			http.NotFound(w, r)
		default:
			w.Write(make([]byte, 300_000))
		}
	}))
	defer server.Close()
	s := FlowsSpec{To: server.Listener.Addr().String(), HTTP: "/file", Account: 1, Concurrency: 4, Duration: 10 * time.Second}
	for range 20 {
		s.Flows = append(s.Flows, Flow{Size: 300_000})
	}
	r, err := flows(t.Context(), s)
	if err != nil || len(r.Connections) != 20 {
		t.Fatalf("%v, %d connections, want 20", err, len(r.Connections))
	}
	ports := map[uint16]bool{}
	for _, c := range r.Connections {
		ports[c.Port] = true
		if !c.Delivered || c.Error != "" || c.Bytes != 300_000 || c.Connect <= 0 || c.Elapsed < c.Connect {
			t.Errorf("flow %+v", c)
		}
	}
	mu.Lock()
	if len(clients) != 20 || len(ports) != 20 {
		t.Errorf("20 requests came over %d connections, from %d ports", len(clients), len(ports))
	}
	mu.Unlock()

	s.Flows = []Flow{{Size: 299_999}}
	if r, _ = flows(t.Context(), s); r.Connections[0].Delivered || !strings.Contains(r.Connections[0].Error, "300000 bytes, not 299999") {
		t.Errorf("another size: %+v", r.Connections[0])
	}
	s.HTTP = "/none"
	if r, _ = flows(t.Context(), s); r.Connections[0].Delivered || !strings.Contains(r.Connections[0].Error, "404") {
		t.Errorf("no such file: %+v", r.Connections[0])
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.To = l.Addr().String()
	l.Close()
	if r, _ = flows(t.Context(), s); r.Connections[0].Connect != 0 || !strings.Contains(r.Connections[0].Error, "refused") {
		t.Errorf("no server: %+v", r.Connections[0])
	}
}
