package metrics

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tcpilot/tcpilot/internal/httpserver"
)

// Limits of the server.
const (
	scrapeTimeout = 10 * time.Second // Prometheus' own default
	stopTimeout   = time.Second
	maxScrapes    = 4 // at a time
	maxHeader     = 16 << 10
)

// NewRegistry returns a registry with the collector, and those of the Go
// runtime and the process.
func NewRegistry(c *Collector) (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	return r, errors.Join(r.Register(c), r.Register(collectors.NewGoCollector()),
		r.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
}

// Handler answers scrapes at /metrics.
func Handler(r *prometheus.Registry, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // one bad series does not hide the others
		MaxRequestsInFlight: maxScrapes,
		Timeout:             scrapeTimeout,
	}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(`<!doctype html><title>tcpilot</title><a href="metrics">metrics</a>`))
	})
	return mux
}

// Serve answers on l until ctx ends, and closes l.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: scrapeTimeout / 2,
		ReadTimeout:       scrapeTimeout,
		WriteTimeout:      2 * scrapeTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return httpserver.Serve(ctx, srv, l, stopTimeout)
}
