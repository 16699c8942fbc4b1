package workload

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
)

// curlFormat makes curl write a line about each request when it ends, to stderr, because
// curl does not buffer that. Times are in seconds. It begins with a newline, because some
// versions of curl write progress to stderr in spite of --silent.
const curlFormat = `%{stderr}\ntcpilot %{local_port} %{time_connect} %{time_total} %{size_download} %{http_code} %{errormsg}\n`

// webCurl lets curl make the requests. "Connection: close" makes curl and nginx use each
// connection for one request only.
func (l *hostPair) webCurl(ctx context.Context, at string) ([]load.Connection, error) {
	var report curlReport
	p, err := l.startWith(&report, l.to, "curl", "--silent", "--parallel", "--parallel-immediate",
		"--parallel-max", strconv.Itoa(l.places()), "--max-time", strconv.Itoa(int(l.bound().Seconds())),
		"--header", "Connection: close", "--output", "/dev/null", "--write-out", curlFormat,
		fmt.Sprintf("http://%s%s?[1-%d]", at, webFile, l.Count))
	if err != nil {
		return nil, err
	}
	defer p.stop()
	err = p.wait(ctx, l.bound()+programOvertime)
	list := report.connections(l.Size.Fixed)
	if len(list) == l.Count {
		err = nil // the exit code says that a request failed, and the list says which
	}
	return list, err
}

// curlReport collects what curl writes, with the time of each line, because curl reports
// how long a request took, but not when it began.
type curlReport struct {
	mu    sync.Mutex
	rest  []byte
	lines []curlLine
}

type curlLine struct {
	at   load.Time
	text string
}

func (r *curlReport) Write(b []byte) (int, error) {
	now := load.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rest = append(r.rest, b...)
	for {
		line, rest, ok := bytes.Cut(r.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		r.lines = append(r.lines, curlLine{now, string(line)})
		r.rest = append([]byte(nil), rest...)
	}
}

// connections are those that curl reported, in the order in which they began.
func (r *curlReport) connections(size uint64) (list []load.Connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.lines {
		if c, ok := line.connection(size); ok {
			list = append(list, c)
		}
	}
	slices.SortStableFunc(list, func(a, b load.Connection) int { return int(a.Begin - b.Begin) })
	return list
}

// connection reads a line; false if it does not have curlFormat.
func (line curlLine) connection(size uint64) (c load.Connection, ok bool) {
	var connect, total float64
	var code int
	text, ok := strings.CutPrefix(line.text, "tcpilot ")
	if !ok {
		return c, false
	}
	parts := strings.SplitN(text, " ", 6)
	if n, err := fmt.Sscan(text, &c.Port, &connect, &total, &c.Bytes, &code); n < 5 || err != nil {
		return c, false
	}
	c.Connect = time.Duration(connect * float64(time.Second))
	c.Elapsed = time.Duration(total * float64(time.Second))
	c.Begin = line.at.Add(-c.Elapsed)
	switch {
	case code != 200 && len(parts) == 6 && parts[5] != "":
		c.Error = "curl: " + parts[5]
	case code != 200:
		c.Error = fmt.Sprintf("curl: status %d", code)
	case c.Bytes != size:
		c.Error = fmt.Sprintf("curl: received %d bytes, not %d", c.Bytes, size)
	}
	c.Delivered = c.Error == ""
	return c, true
}
