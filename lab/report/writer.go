package report

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// Writer writes a report while the experiment runs. After each line that is not data the
// file can be read, even if the program is killed. After an error all later calls return
// the same error.
type Writer struct {
	zip  *gzip.Writer // nil if plain
	buf  *bufio.Writer
	enc  *json.Encoder
	file *os.File // nil if the writer was not made by Create
	err  error
}

// NewWriter writes plain JSON lines to w.
func NewWriter(w io.Writer) *Writer {
	buf := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	return &Writer{buf: buf, enc: enc}
}

// NewZipWriter writes JSON lines to w, compressed.
func NewZipWriter(w io.Writer) *Writer {
	zip := gzip.NewWriter(w)
	writer := NewWriter(zip)
	writer.zip = zip
	return writer
}

// Create makes a file, compressed if its name ends in .gz. If the file exists, the error
// is fs.ErrExist: a report is never overwritten.
func Create(name string) (*Writer, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create report: %w", err)
	}
	w := NewWriter(f)
	if strings.HasSuffix(name, ".gz") {
		w = NewZipWriter(f)
	}
	w.file = f
	return w, nil
}

// Run writes the first line. It sets the version.
func (w *Writer) Run(r Run) error {
	r.Version = version
	w.line(record{Type: "run", Run: &r})
	return w.flush()
}

// Case writes a case, before its rounds.
func (w *Writer) Case(c Case) error {
	w.line(record{Type: "case", Case: &c})
	return w.flush()
}

// Round writes a round and the traffic that it was measured from; result may be
// nil.
func (w *Writer) Round(r Round, result *measure.Result) error {
	if result != nil {
		w.data(&r, result)
	}
	w.line(record{Type: "round", Round: &r})
	return w.flush()
}

func (w *Writer) data(r *Round, result *measure.Result) {
	for i := range result.Connections {
		w.line(record{Type: "connection", Data: &data{r.Scenario, r.Case, r.Order, &result.Connections[i], nil, nil}})
	}
	for i := range result.Requests {
		w.line(record{Type: "request", Data: &data{r.Scenario, r.Case, r.Order, nil, &result.Requests[i], nil}})
	}
	for i := range result.Points {
		w.line(record{Type: "point", Data: &data{r.Scenario, r.Case, r.Order, nil, nil, &result.Points[i]}})
	}
}

// End writes the last line.
func (w *Writer) End(e End) error {
	w.line(record{Type: "end", End: &e})
	return w.flush()
}

// Close completes the report and closes the file of Create. It does not close the
// io.Writer that NewWriter was given.
func (w *Writer) Close() error {
	w.flush()
	if w.zip != nil && w.err == nil {
		w.fail(w.zip.Close())
	}
	if w.file != nil {
		w.fail(w.file.Close())
	}
	return w.err
}

func (w *Writer) line(r record) {
	if w.err == nil {
		w.fail(w.enc.Encode(r))
	}
}

func (w *Writer) flush() error {
	if w.err == nil {
		w.fail(w.buf.Flush())
	}
	if w.zip != nil && w.err == nil {
		w.fail(w.zip.Flush())
	}
	return w.err
}

func (w *Writer) fail(err error) {
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("write report: %w", err)
	}
}
