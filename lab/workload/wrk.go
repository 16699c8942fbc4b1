package workload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/measure"
)

// nginxConf configures nginx as distributions do for files: a worker for each processor, sendfile. Its two
// format verbs are a directory and a port. Temporary files go to that directory, because the default
// directories belong to the machine's nginx.
const nginxConf = `daemon off;
worker_processes auto;
pid %[1]s/pid;
error_log stderr error;
worker_rlimit_nofile 65536;
events { worker_connections 16384; }
http {
	access_log off;
	sendfile on;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	server {
		listen %[2]d;
		listen [::]:%[2]d;
		root %[1]s/files;
	}
}
`

// nginxPatience is how long the workers of nginx may take to end after SIGTERM.
const nginxPatience = 2 * time.Second

// wrkScript makes wrk print the whole distribution of latencies: a line with microseconds
// and count for each value.
const wrkScript = `done = function(s, latency, requests)
	local e = s.errors
	io.write(string.format("tcpilot %d %d %d %d %d %d %d\n", s.requests, s.duration,
		e.connect, e.read, e.write, e.status, e.timeout))
	for i = 1, #latency do
		local value, count = latency(i)
		io.write(string.format("%d %d\n", value, count))
	end
end
`

// wrk runs nginx at the sender and wrk at the receiver, with a connection for each request:
// the agents' flows are compared with that.
func (l *hostPair) wrk(ctx context.Context) {
	if err := l.wrkOnce(ctx); err != nil && ctx.Err() == nil {
		l.fail(err)
	}
}

func (l *hostPair) wrkOnce(ctx context.Context) error {
	dir, at, stop, err := l.nginx(ctx)
	if err != nil {
		return err
	}
	defer stop()
	begin := load.Now()
	wrk, err := l.start(l.to, "wrk", "-t", "1", "-c", strconv.Itoa(l.places()), "-d", strconv.Itoa(int(l.Duration/time.Second)),
		"--timeout", strconv.Itoa(int(programOvertime/2/time.Second)), "-H", "Connection: close",
		"-s", filepath.Join(dir, "done.lua"), fmt.Sprintf("http://%s/file", at))
	if err != nil {
		return err
	}
	defer wrk.stop()
	if err := wrk.wait(ctx, l.Duration+programOvertime); err != nil {
		return err
	}
	w, err := parseWrk(wrk.out.String())
	if err != nil {
		return err
	}
	l.recordWrk(w, l.at(begin))
	return nil
}

// nginx starts nginx at the sender. Its files are in a directory of its own.
func (l *hostPair) nginx(ctx context.Context) (dir string, at netip.AddrPort, stop func(), err error) {
	port := programPort + l.number
	if dir, err = l.files(port); err != nil {
		return "", at, nil, err
	}
	server, err := l.start(l.from, "nginx", "-p", dir, "-c", filepath.Join(dir, "nginx.conf"))
	if err != nil {
		return "", at, nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() {
		server.end(nginxPatience)
		os.RemoveAll(dir)
	}
	if err := server.serving(ctx, port); err != nil {
		stop()
		return "", at, nil, err
	}
	return dir, netip.AddrPortFrom(l.layout.Addr(l.from, l.IPv6), uint16(port)), stop, nil
}

// files writes what nginx and wrk read.
func (l *hostPair) files(port int) (dir string, err error) {
	l.mu.Lock()
	if l.dir == "" {
		l.dir, err = l.layout.Net.Dir("workload")
	}
	dir = filepath.Join(l.dir, strconv.Itoa(port))
	l.mu.Unlock()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(dir, "files"), 0o755); err != nil {
		return "", fmt.Errorf("make directory for nginx: %w", err)
	}
	for name, text := range map[string]string{"nginx.conf": fmt.Sprintf(nginxConf, dir, port), "done.lua": wrkScript} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("write %s: %w", name, err)
		}
	}
	file, err := os.Create(filepath.Join(dir, "files", "file"))
	if err != nil {
		return "", fmt.Errorf("make file for nginx: %w", err)
	}
	defer file.Close()
	if err := file.Truncate(int64(l.Size.Fixed)); err != nil { // zeros that take no room
		return "", fmt.Errorf("make file for nginx: %w", err)
	}
	return dir, nil
}

// wrkReport is what wrk reports of all its connections together.
type wrkReport struct {
	requests uint64
	elapsed  time.Duration
	errors   [5]uint64 // connect, read, write, status, timeout
	// latencies are from the first byte of the request to the last byte of the reply. The
	// time to connect is not included. wrk adds latencies for requests that it would have
	// sent while it waited for a slow reply (its correction for coordinated omission).
	latencies []latency
}

type latency struct {
	value time.Duration
	count uint64
}

func parseWrk(text string) (r wrkReport, err error) {
	in := bufio.NewScanner(strings.NewReader(text))
	for in.Scan() && !strings.HasPrefix(in.Text(), "tcpilot ") {
	}
	var us int64
	if _, err := fmt.Sscanf(in.Text(), "tcpilot %d %d %d %d %d %d %d", &r.requests, &us,
		&r.errors[0], &r.errors[1], &r.errors[2], &r.errors[3], &r.errors[4]); err != nil {
		return r, fmt.Errorf("read wrk's report: %w", err)
	}
	r.elapsed = time.Duration(us) * time.Microsecond
	for in.Scan() {
		var v int64
		var l latency
		if _, err := fmt.Sscanf(in.Text(), "%d %d", &v, &l.count); err != nil {
			return r, fmt.Errorf("read wrk's latencies: %w", err)
		}
		l.value = time.Duration(v) * time.Microsecond
		r.latencies = append(r.latencies, l)
	}
	return r, nil
}

// quantiles returns n values that have the distribution of all latencies, or fewer if there
// are fewer latencies.
func (r wrkReport) quantiles(n int) (values []time.Duration) {
	var total uint64
	for _, l := range r.latencies {
		total += l.count
	}
	n = int(min(uint64(n), total))
	var below uint64
	for _, l := range r.latencies {
		below += l.count
		for len(values) < n && (float64(len(values))+0.5)/float64(n)*float64(total) <= float64(below) {
			values = append(values, l.value)
		}
	}
	return values
}

// recordWrk records what wrk reports. One connection stands for all, because wrk does not
// report single ones. Requests have the latencies, but all the same start.
func (l *hostPair) recordWrk(r wrkReport, start time.Duration) {
	var failed uint64
	for _, n := range r.errors {
		failed += n
	}
	if failed > 0 {
		l.failed(failed, fmt.Sprintf("wrk counts errors: %d connect, %d read, %d write, %d status, %d timeout",
			r.errors[0], r.errors[1], r.errors[2], r.errors[3], r.errors[4]))
	}
	e := entry{Connection: l.connection(false)}
	e.Start, e.Elapsed = start, r.elapsed
	e.Bytes, e.Delivered = r.requests*l.Size.Fixed, failed == 0
	for _, v := range r.quantiles(keep) {
		e.requests = append(e.requests, measure.Request{Start: start, Elapsed: v, Bytes: l.Size.Fixed})
	}
	l.add(e)
	l.total(l.group(), measure.Total{Connections: r.requests, Requests: r.requests, Bytes: e.Bytes})
}
