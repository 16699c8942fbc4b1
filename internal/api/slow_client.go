package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
)

// deadlineWriter writes to a client, and closes the connection if the client does not read for
// patience, so that stalled clients do not occupy memory.
type deadlineWriter struct {
	w        http.ResponseWriter
	patience time.Duration
}

// Write implements io.Writer.
func (p deadlineWriter) Write(b []byte) (int, error) {
	// The response recorder of tests has no deadlines.
	if err := http.NewResponseController(p.w).SetWriteDeadline(time.Now().Add(p.patience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return p.w.Write(b)
}

// splitPaths returns a document without its paths, and the paths.
func splitPaths(v any) (rest any, paths []*engine.PathState, has bool) {
	none := []*engine.PathState{}
	switch v := v.(type) {
	case PathList:
		paths, v.Paths = v.Paths, none
		return v, paths, true
	case *engine.Snapshot:
		c := *v
		c.Paths = none
		return c, v.Paths, true
	}
	return nil, nil, false
}

// longIndent is the indentation of the paths of a document.
const longIndent = "    "

// writeLong writes rest with paths in place of its empty list, one path at a time, because
// the whole text would take twice the memory of the paths.
func writeLong(w http.ResponseWriter, rest any, paths []*engine.PathState) error {
	text, err := json.MarshalIndent(rest, "", "  ")
	if err != nil {
		return err
	}
	head, tail, _ := bytes.Cut(text, []byte("\n  \"paths\": []"))
	// Write errors stay in b: the first one ends the loop.
	b := bufio.NewWriterSize(deadlineWriter{w, askTimeout}, 64<<10)
	b.Write(head)
	b.WriteString("\n  \"paths\": [")
	for i, p := range paths {
		if i > 0 {
			b.WriteByte(',')
		}
		one, err := json.MarshalIndent(p, longIndent, "  ")
		if err != nil {
			return err
		}
		b.WriteString("\n" + longIndent)
		if _, err := b.Write(one); err != nil {
			return err
		}
	}
	if len(paths) > 0 {
		b.WriteString("\n  ")
	}
	b.WriteByte(']')
	b.Write(tail)
	b.WriteByte('\n')
	return b.Flush()
}
