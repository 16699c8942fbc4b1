package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
)

const maxAnswer = 64 << 10 // bytes

// syncPods makes the daemon at a socket read the records, and waits until rules hold for them.
func syncPods(ctx context.Context, socket string) error {
	// Not api.Client: it would make the program, which runs several times a pod, twice as large.
	var d net.Dialer
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", socket)
	}}
	// The host is the daemon at the other end of the socket, whatever its name.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://tcpilot/v1/pods/sync", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 300 {
		return nil
	}
	var answer struct {
		Error string `json:"error"`
	}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if json.Unmarshal(b, &answer) != nil || answer.Error == "" {
		answer.Error = resp.Status
	}
	return errors.New(answer.Error)
}

// explainSync says what an error of syncPods means for the pod.
func explainSync(socket string, err error) string {
	const later = "the pod runs with the kernel's defaults until tcpilot starts and reads its record"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("tcpilot is not running (no socket at %s): %s", socket, later)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("tcpilot is not running (nobody listens on %s): %s", socket, later)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("tcpilot at %s has not answered in time: its rules may not hold for the pod yet", socket)
	}
	return fmt.Sprintf("tcpilot at %s has not read the records: %v", socket, err)
}
