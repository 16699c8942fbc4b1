package subject

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// logLimit is how much is kept of what processes write, in bytes.
	logLimit = 64 << 10
	// errorLimit is how much of it an error quotes, in bytes.
	errorLimit = 2 << 10
)

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if extra := len(t.text) - logLimit; extra > 0 {
		t.text = append(t.text[:0], t.text[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// end is the part that an error quotes: whole lines, if they are not too long.
func (t *tail) end() string {
	s := strings.TrimSpace(t.String())
	if len(s) <= errorLimit {
		return s
	}
	s = s[len(s)-errorLimit:]
	if _, lines, ok := strings.Cut(s, "\n"); ok {
		return lines
	}
	return s
}

// pipe is a pipe to a log, for programs that outlive the shell that started them.
type pipe struct {
	*os.File
	read   *os.File
	marks  chan struct{} // one for each mark that was read
	copied chan struct{}
}

// mark is ASCII's record separator, which no program writes to a log.
const mark = 0x1e

func (t *tail) pipe() (*pipe, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	p := &pipe{File: w, read: r, marks: make(chan struct{}, 1), copied: make(chan struct{})}
	go p.copy(t)
	return p, nil
}

func (p *pipe) copy(t *tail) {
	defer close(p.copied)
	buf := make([]byte, 4<<10)
	for {
		n, err := p.read.Read(buf)
		text := bytes.ReplaceAll(buf[:n], []byte{mark}, nil)
		t.Write(text)
		if len(text) < n {
			select {
			case p.marks <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return
		}
	}
}

// flush waits until everything that was written before the call is in the log.
func (p *pipe) flush() {
	if _, err := p.Write([]byte{mark}); err != nil {
		return
	}
	select {
	case <-p.marks:
	case <-p.copied:
	case <-time.After(drain):
	}
}

// Close reads what is left. After that, processes that still have the pipe open cannot
// write to it.
func (p *pipe) Close() error {
	err := p.File.Close()
	select {
	case <-p.copied:
	case <-time.After(drain):
	}
	p.read.Close()
	<-p.copied
	return err
}
