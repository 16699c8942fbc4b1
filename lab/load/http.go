package load

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"
)

// newHTTPClient returns a client that makes a connection for each request. No request
// goes on past end.
func newHTTPClient(end time.Time) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, ReadBufferSize: chunk,
		ResponseHeaderTimeout: idle,
		DialContext: func(ctx context.Context, _, to string) (net.Conn, error) {
			c, err := dial(ctx, to, "", min(connectTimeout, time.Until(end)))
			if err != nil {
				return nil, err
			}
			return &httpConn{c, end}, nil
		},
	}}
}

// httpConn is a connection on which no read or write waits longer than idle or past the
// end.
type httpConn struct {
	net.Conn
	end time.Time
}

func (c *httpConn) Read(b []byte) (int, error) {
	until := time.Now().Add(idle)
	if until.After(c.end) {
		until = c.end
	}
	c.SetReadDeadline(until)
	return c.Conn.Read(b)
}

// get is one transfer over HTTP.
func (f *flowClient) get(ctx context.Context, r *Connection, o order) error {
	trace := httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		r.Connect = since(r.Begin)
		r.Port = uint16(i.Conn.LocalAddr().(*net.TCPAddr).Port)
	}}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, &trace),
		http.MethodGet, "http://"+f.spec.To+f.spec.HTTP, nil)
	if err != nil {
		return err
	}
	response, err := f.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", f.spec.HTTP, response.Status)
	}
	buf := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buf)
	n, err := io.CopyBuffer(writeOnly{}, response.Body, *buf)
	r.Bytes, r.Elapsed = uint64(n), since(r.Begin)
	if err != nil {
		return fmt.Errorf("get %s: received %d of %d bytes: %w", f.spec.HTTP, n, o.reply, err)
	}
	if n != int64(o.reply) {
		return fmt.Errorf("get %s: received %d bytes, not %d", f.spec.HTTP, n, o.reply)
	}
	r.Delivered = true
	return nil
}

// writeOnly is io.Discard without its ReadFrom, which uses small buffers.
type writeOnly struct{}

func (writeOnly) Write(b []byte) (int, error) { return len(b), nil }
