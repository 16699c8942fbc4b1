package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// magic begins every file. Its bytes are not text, so that a conversion of line ends or characters
// is noticed (as with PNG's signature).
var magic = [8]byte{0x89, 'T', 'C', 'P', 'I', '\r', '\n', 0x1a}

const (
	fixedHeader = 16       // magic, u16 version, u16 record size, u32 length of Meta
	maxMeta     = 64 << 10 // bytes
	bufferSize  = 256 << 10
)

// Meta describes where the samples of a file come from.
type Meta struct {
	Created time.Time  `json:"created"`
	Version string     `json:"version"` // of the tcpilot that wrote it
	Kernel  string     `json:"kernel"`  // release of the host recorded
	Rules   []RuleName `json:"rules"`   // names of the samples' classes
}

// RuleName names a class.
type RuleName struct {
	Class uint32 `json:"class"`
	Name  string `json:"name"`
}

// Writer writes samples to a file. It buffers: call Flush at the end.
type Writer struct {
	w     *bufio.Writer
	buf   [Size]byte
	count uint64
}

// NewWriter writes the header to w.
func NewWriter(w io.Writer, m Meta) (*Writer, error) {
	meta, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	if len(meta) > maxMeta {
		return nil, fmt.Errorf("encode header: %d bytes of rule names, at most %d fit", len(meta), maxMeta)
	}
	bw := bufio.NewWriterSize(w, bufferSize)
	h := append([]byte(nil), magic[:]...)
	h = le.AppendUint16(h, formatVersion)
	h = le.AppendUint16(h, Size)
	h = le.AppendUint32(h, uint32(len(meta)))
	bw.Write(h)
	bw.Write(meta)
	if err := bw.Flush(); err != nil {
		return nil, fmt.Errorf("write header: %w", err)
	}
	return &Writer{w: bw}, nil
}

// Write adds s.
func (w *Writer) Write(s *tcp.Sample) error {
	encode(&w.buf, s)
	if _, err := w.w.Write(w.buf[:]); err != nil {
		return fmt.Errorf("write sample %d: %w", w.count+1, err)
	}
	w.count++
	return nil
}

// Flush writes what is buffered.
func (w *Writer) Flush() error {
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("write samples: %w", err)
	}
	return nil
}

// ErrForeign is wrapped by NewReader when the file is not a recording at all.
var ErrForeign = errors.New("not a tcpilot recording")

// damageError is the position at which a recording becomes unreadable. All samples before it
// were delivered.
type damageError struct {
	Offset  int64  // of the record in the file
	Samples uint64 // complete samples before it
	Err     error
}

func (e *damageError) Error() string {
	return fmt.Sprintf("sample %d at byte %d: %v", e.Samples+1, e.Offset, e.Err)
}

func (e *damageError) Unwrap() error { return e.Err }

// Reader reads a recording from its beginning to its end, once.
type Reader struct {
	r      *bufio.Reader
	meta   Meta
	offset int64
	count  uint64
	err    error
}

// NewReader reads the header.
func NewReader(r io.Reader) (*Reader, error) {
	br := bufio.NewReaderSize(r, bufferSize)
	var h [fixedHeader]byte
	if n, err := io.ReadFull(br, h[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: %d bytes are too few for a header", ErrForeign, n)
		}
		return nil, fmt.Errorf("read header: %w", err)
	}
	if !bytes.Equal(h[:len(magic)], magic[:]) {
		return nil, fmt.Errorf("%w: it does not start with the right eight bytes", ErrForeign)
	}
	version, size, length := le.Uint16(h[8:]), int(le.Uint16(h[10:])), le.Uint32(h[12:])
	if version != formatVersion {
		return nil, fmt.Errorf("recording has version %d, and this tcpilot reads version %d: replay it with the tcpilot that recorded it", version, formatVersion)
	}
	if size != Size || length > maxMeta {
		return nil, fmt.Errorf("header is damaged: records of %d bytes (want %d), %d bytes of description", size, Size, length)
	}
	meta := make([]byte, length)
	if _, err := io.ReadFull(br, meta); err != nil {
		return nil, fmt.Errorf("header is cut short: %w", io.ErrUnexpectedEOF)
	}
	rd := &Reader{r: br, offset: fixedHeader + int64(length)}
	if err := json.Unmarshal(meta, &rd.meta); err != nil {
		return nil, fmt.Errorf("header is damaged: %w", err)
	}
	return rd, nil
}

// Meta says where the samples come from.
func (r *Reader) Meta() Meta { return r.meta }

// Count is how many samples were read.
func (r *Reader) Count() uint64 { return r.count }

// Err is why reading stopped before the end of the file; nil at its end.
func (r *Reader) Err() error { return r.err }

// read reads the next sample into s; every field is written and nothing is
// allocated. It returns io.EOF after the last one, and a damageError if the rest of the file
// is unreadable.
func (r *Reader) read(s *tcp.Sample) error {
	if r.err != nil {
		return r.err
	}
	b, err := r.r.Peek(Size)
	switch {
	case err == nil:
		err = decode(s, b)
	case errors.Is(err, io.EOF) && len(b) == 0:
		return io.EOF
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("cut short after %d of %d bytes: %w", len(b), Size, io.ErrUnexpectedEOF)
	}
	if err != nil {
		r.err = &damageError{Offset: r.offset, Samples: r.count, Err: err}
		return r.err
	}
	_, _ = r.r.Discard(Size) // cannot fail: Peek has buffered it
	r.offset += int64(Size)
	r.count++
	return nil
}

// All yields every remaining sample. The next sample overwrites it: copy it to keep it. Check
// Err afterwards.
func (r *Reader) All() iter.Seq[*tcp.Sample] {
	return func(yield func(*tcp.Sample) bool) {
		var s tcp.Sample
		for r.read(&s) == nil {
			if !yield(&s) {
				return
			}
		}
	}
}
