package report

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// Report is all of a report.
type Report struct {
	File  string // the file it was read from; may be empty
	Run   Run
	Cases []*CaseRounds
	End   *End // nil if the run was killed
	// Truncated says what is missing if the run was killed; empty if nothing is.
	Truncated string
}

// CaseRounds is a case with its rounds in the order in which they ran.
type CaseRounds struct {
	Case
	Rounds []*RoundData
}

// RoundData is a round with the traffic that it was measured from.
type RoundData struct {
	Round
	Connections []measure.Connection
	Requests    []measure.Request
	Points      []measure.Point
}

// Open reads the report in a file.
func Open(name string) (*Report, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open report: %w", err)
	}
	defer f.Close()
	r, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return r, nil
}

// Read reads a report, plain or compressed. A report that was cut off is read up to its
// last complete round, and Truncated is set; any other damage is an error that names the
// line.
func Read(r io.Reader) (*Report, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		zip, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("uncompress: %w", err)
		}
		in = bufio.NewReaderSize(zip, 1<<16)
	}
	d := &decoder{names: make(map[string]string), cases: make(map[[2]string]*openCase)}
	n := 0
	for {
		line, err := readLine(in, d.line[:0])
		d.line = line
		torn := err != nil
		if torn && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		if len(line) > 0 {
			n++
			if err := d.record(line, n); err != nil {
				if !torn || n == 1 || json.Valid(line) {
					return nil, fmt.Errorf("line %d: %w", n, err)
				}
				d.report.Truncated = fmt.Sprintf("line %d is cut off; ", n)
			}
		}
		if torn {
			return d.finish(n)
		}
	}
}

// readLine appends the next line to buf, without the newline. A last line without a
// newline is returned with the error that ended it.
func readLine(in *bufio.Reader, buf []byte) ([]byte, error) {
	for {
		part, err := in.ReadSlice('\n')
		buf = append(buf, part...)
		if err == nil {
			return buf[:len(buf)-1], nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return buf, err
		}
	}
}
