package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// The file is a line of JSON (struct about), the records, and a checksum of everything
// before it (CRC-32C, 4 bytes).

// schema counts the incompatible layouts of the file and of the beliefs in it. A file of another schema is not
// migrated: what was learned is learned again.
const schema = 6

const format = "tcpilot beliefs"

type about struct {
	Format string `json:"format"`
	Schema int    `json:"schema"`
	// Boot identifies the boot in which the file was written: cookies of network namespaces
	// start over with the next.
	Boot string `json:"boot"`
}

const (
	maxAbout = 1 << 10 // bytes
	sumSize  = crc32.Size
)

// castagnoli has hardware support on amd64 and arm64.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// damage is why a file cannot be used, if a new file can replace it.
type damage struct{ why string }

func (d *damage) Error() string { return d.why }

var errCut = &damage{"it is damaged: a record is cut off or has an impossible length"}

// entry is a record as it is in the file.
type entry struct {
	key, belief []byte
	last        int64
}

// scan reads a whole file and calls f for every record; f must not keep the entry. The
// checksum is verified at the end: the records are valid only if scan returns nil. An empty
// file has no records.
func scan(file *os.File, f func(entry) error) (about, error) {
	info, err := file.Stat()
	if err != nil {
		return about{}, err
	}
	if info.Size() == 0 {
		return about{}, nil
	}
	r := bufio.NewReaderSize(io.NewSectionReader(file, 0, info.Size()), 1<<16)
	a, head, err := readAbout(r)
	if err != nil {
		return a, err
	}
	sum := crc32.New(castagnoli)
	sum.Write(head)
	buf := make([]byte, recordHead+maxKey+maxBelief)
	for left := info.Size() - int64(len(head)) - sumSize; left > 0; {
		e, n, err := readEntry(r, buf, left)
		if err != nil {
			return a, err
		}
		sum.Write(buf[:n])
		left -= int64(n)
		if err := f(e); err != nil {
			return a, err
		}
	}
	if err := readFull(r, buf[:sumSize]); err != nil {
		return a, err
	}
	if binary.LittleEndian.Uint32(buf) != sum.Sum32() {
		return a, &damage{"it is damaged: its checksum does not match"}
	}
	return a, nil
}

func readAbout(r *bufio.Reader) (a about, line []byte, err error) {
	head, err := r.Peek(maxAbout)
	if err != nil && !errors.Is(err, io.EOF) {
		return a, nil, err
	}
	i := bytes.IndexByte(head, '\n')
	if i < 0 || json.Unmarshal(head[:i], &a) != nil || a.Format != format {
		return a, nil, &damage{"it is not a file of beliefs"}
	}
	if a.Schema != schema {
		return a, nil, &damage{fmt.Sprintf("it has schema %d, this version of tcpilot reads schema %d", a.Schema, schema)}
	}
	line = bytes.Clone(head[:i+1])
	_, err = r.Discard(len(line))
	return a, line, err
}

// readEntry reads a record of at most left bytes into buf, and returns its length.
func readEntry(r io.Reader, buf []byte, left int64) (e entry, n int, err error) {
	if left < recordHead {
		return e, 0, errCut
	}
	if err := readFull(r, buf[:recordHead]); err != nil {
		return e, 0, err
	}
	key, belief, last := readHead(buf)
	n = recordHead + key + belief
	if key < minKey || key > maxKey || belief > maxBelief || int64(n) > left {
		return e, 0, errCut
	}
	if err := readFull(r, buf[recordHead:n]); err != nil {
		return e, 0, err
	}
	return entry{buf[recordHead:][:key], buf[recordHead+key : n], last}, n, nil
}

func readFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errCut // the file became shorter
	}
	return err
}

// writer writes a file that replaces another one when it is complete.
type writer struct {
	path string
	file *os.File
	buf  *bufio.Writer
	sum  hash.Hash32
	out  io.Writer // to the file and the checksum
	head [recordHead]byte
}

func newWriter(path, boot string) (*writer, error) {
	file, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	w := &writer{path: path, file: file, buf: bufio.NewWriterSize(file, 1<<16), sum: crc32.New(castagnoli)}
	w.out = io.MultiWriter(w.buf, w.sum)
	line, err := json.Marshal(about{format, schema, boot})
	if err == nil {
		_, err = w.out.Write(append(line, '\n'))
	}
	if err != nil {
		return nil, errors.Join(err, w.abort())
	}
	return w, nil
}

func (w *writer) put(e entry) error {
	putHead(w.head[:], len(e.key), len(e.belief), e.last)
	_, err := w.out.Write(w.head[:])
	if err == nil {
		_, err = w.out.Write(e.key)
	}
	if err == nil {
		_, err = w.out.Write(e.belief)
	}
	return err
}

// commit renames the file into place, and returns it open. On an error the old file is
// still there.
func (w *writer) commit() (*os.File, error) {
	_, err := w.buf.Write(binary.LittleEndian.AppendUint32(nil, w.sum.Sum32()))
	if err == nil {
		err = w.buf.Flush()
	}
	if err == nil {
		err = w.file.Sync()
	}
	if err == nil {
		err = os.Rename(w.file.Name(), w.path)
	}
	if err != nil {
		return nil, errors.Join(err, w.abort())
	}
	// The rename is in effect even if the directory cannot be synced. Then only a crash of
	// the machine could bring the old file back.
	if dir, err := os.Open(filepath.Dir(w.path)); err == nil {
		_ = dir.Sync()
		dir.Close()
	}
	return w.file, nil
}

func (w *writer) abort() error { return errors.Join(w.file.Close(), os.Remove(w.file.Name())) }
