package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
)

const maxAnswer = 64 << 10 // bytes

// syncRequest is HTTP/1.0, so that the answer ends with the connection. The header Host may have any
// value.
const syncRequest = "POST /v1/pods/sync HTTP/1.0\r\nHost: tcpilot\r\nContent-Length: 0\r\n\r\n"

// syncPods makes the daemon at a socket read the records, and waits until rules hold for them.
//
// It does without net/http, which would make this program more than twice as large: the start and the end of
// a pod run it three times.
func syncPods(ctx context.Context, socket string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(c, syncRequest); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(c, maxAnswer))
	if err != nil {
		return err
	}
	head, body, _ := bytes.Cut(b, []byte("\r\n\r\n"))
	status, _, _ := bytes.Cut(head, []byte("\r\n"))
	protocol, status, _ := bytes.Cut(status, []byte(" "))
	if !bytes.HasPrefix(protocol, []byte("HTTP/1.")) {
		return errors.New("the answer is not HTTP")
	}
	if bytes.HasPrefix(status, []byte("2")) {
		return nil
	}
	var answer struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Error == "" {
		answer.Error = string(status)
	}
	return errors.New(answer.Error)
}

// explainSync returns what an error of syncPods means, and what follows from it.
func explainSync(command, socket string, err error) string {
	why := fmt.Sprintf("tcpilot at %s has not read the records: %v", socket, err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		why = fmt.Sprintf("tcpilot is not running (no socket at %s)", socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		why = fmt.Sprintf("tcpilot is not running (nobody listens on %s)", socket)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		why = fmt.Sprintf("tcpilot at %s has not answered in time", socket)
	}
	if command == "ADD" {
		return why + "; rules for the pod take effect when tcpilot reads the record: within about 5 s if it runs, otherwise when it starts"
	}
	return why + "; tcpilot forgets the pod when it reads the records next"
}
