package podrecord

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/filelock"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/regular"
)

// Dir is the directory of the records: one file for each attachment, CONTAINER@INTERFACE.json. Its users
// need no common lock: there is no index that two processes could write at the same time, and each
// record is put in its place by rename(2), so that readers find a whole record or none, even if the
// writer was killed.
//
// Records are not synced to disk. A crash of the host ends all network namespaces, and with them
// what records are about; until then the page cache has them. Waiting for the disk would delay
// pods by seconds while images are unpacked.
type Dir string

// maxRecord is the largest record in bytes. A pod's annotations have at most 256 KiB (Kubernetes,
// TotalAnnotationSizeLimitB), and JSON writes one byte as six at worst.
const maxRecord = 2 << 20

// Put writes the record of p in place of its previous one, if any. It creates the directory.
func (d Dir) Put(p *pod.Pod) error {
	data, err := encode(p)
	if err == nil {
		err = d.withTemporary(fileOf(p.Key()), data, func(path string) error {
			return os.Rename(path, d.path(fileOf(p.Key())))
		})
	}
	if err != nil {
		return fmt.Errorf("write record of pod: %w", err)
	}
	return nil
}

// withTemporary writes a file of mode 0600 and calls f, which moves it to another path or removes it. If
// the process is killed before that, Delete and Keep remove the file.
func (d Dir) withTemporary(file string, data []byte, f func(path string) error) error {
	t, err := d.createTemporary(file)
	if err != nil {
		return err
	}
	defer t.Close() // until then it is locked
	if _, err = t.Write(data); err == nil {
		err = f(t.Name())
	}
	if err != nil {
		return errors.Join(err, remove(t.Name()))
	}
	return nil
}

// createTemporary creates a file and locks it, which tells others that this process lives. Until the
// file is locked, others may remove it: then another one is created.
func (d Dir) createTemporary(file string) (*os.File, error) {
	for {
		if err := os.MkdirAll(string(d), 0o700); err != nil {
			return nil, err
		}
		t, err := os.CreateTemp(string(d), temporaryPrefix(file)+"*"+temporarySuffix)
		if err != nil {
			return nil, err
		}
		var st unix.Stat_t
		if err = filelock.Wait(t); err == nil {
			err = unix.Fstat(int(t.Fd()), &st)
		}
		if err == nil && st.Nlink > 0 {
			return t, nil
		}
		t.Close()
		if err != nil {
			return nil, errors.Join(err, remove(t.Name()))
		}
	}
}

// removeTemporary removes a temporary file if the process that wrote it has ended.
func removeTemporary(path string) error {
	release, err := filelock.Lock(path)
	var held *filelock.HeldError
	if errors.As(err, &held) {
		return nil
	}
	if err != nil {
		return err
	}
	return release() // removes it
}

// removeTemporaries is removeTemporary for all of one file.
func (d Dir) removeTemporaries(of string) error {
	files, err := d.files()
	for _, file := range files {
		if isTemporary(file) && strings.HasPrefix(file, temporaryPrefix(of)) {
			err = errors.Join(err, removeTemporary(d.path(file)))
		}
	}
	return err
}

// Get returns the record of an attachment; without one the error is fs.ErrNotExist.
func (d Dir) Get(k pod.Key) (p pod.Pod, err error) {
	if err := k.Check(); err != nil {
		return p, fmt.Errorf("read record of pod: %w", err)
	}
	r, err := d.read(fileOf(k))
	if err != nil {
		return p, fmt.Errorf("read record of pod: %w", err)
	}
	return r.Pod, nil
}

// Hold locks the record of an attachment against other processes, until release. Processes that this one
// starts meanwhile inherit the lock: if this one is killed, they hold it until they end. Hold waits for the lock
// at most for limit. Without a record it does nothing.
func (d Dir) Hold(k pod.Key, limit time.Duration) (release func(), err error) {
	if err := k.Check(); err != nil {
		return nil, fmt.Errorf("lock record of pod: %w", err)
	}
	f, err := os.Open(d.path(fileOf(k)))
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock record of pod: %w", err)
	}
	if err = filelock.WaitAtMost(f, limit); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETFD, 0) // without FD_CLOEXEC
	}
	if err != nil {
		return nil, fmt.Errorf("lock record of pod: %w", errors.Join(err, f.Close()))
	}
	return func() { f.Close() }, nil
}

// Delete removes the record of an attachment, and the temporary files of a process that was killed while it
// wrote the record. It is not an error if there is no record; removed says whether there was one.
func (d Dir) Delete(k pod.Key) (removed bool, err error) {
	if err := k.Check(); err != nil {
		return false, fmt.Errorf("delete record of pod: %w", err)
	}
	err = os.Remove(d.path(fileOf(k)))
	removed = err == nil
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(err, d.removeTemporaries(fileOf(k))); err != nil {
		return removed, fmt.Errorf("delete record of pod: %w", err)
	}
	return removed, nil
}

// Record is a pod's record as it was read.
type Record struct {
	pod.Pod
	File string // its name in the directory
	info fs.FileInfo
}

// Refused is a file of the directory that is not a valid record.
type Refused struct {
	File string
	Why  error
}

// List reads all records, in the order of their files' names. Without a directory there are none.
func (d Dir) List() (records []Record, refused []Refused, err error) {
	files, err := d.files()
	if err != nil {
		return nil, nil, fmt.Errorf("list records of pods: %w", err)
	}
	for _, file := range files {
		if isTemporary(file) {
			continue
		}
		r, err := d.read(file)
		switch {
		case err == nil:
			records = append(records, r)
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM): // nothing is wrong with the file
			return nil, nil, fmt.Errorf("list records of pods: %w", err)
		case !errors.Is(err, fs.ErrNotExist): // deleted since
			refused = append(refused, Refused{file, err})
		}
	}
	return records, refused, nil
}

// Remove removes a record that was listed, unless another one has taken its place since. It is not an
// error if it is gone.
func (d Dir) Remove(r *Record) error {
	path := d.path(r.File)
	now, err := os.Lstat(path)
	if err == nil {
		if !os.SameFile(now, r.info) || !now.ModTime().Equal(r.info.ModTime()) {
			return fmt.Errorf("remove record of pod: %s was written again meanwhile", path)
		}
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of pod: %w", err)
	}
	return nil
}

// Keep deletes the records of a network except those of valid attachments, and the temporary files that
// killed processes have left, of any network. It goes on after errors; removed counts the records.
func (d Dir) Keep(network string, valid []pod.Key) (removed int, err error) {
	keep := make(map[pod.Key]bool, len(valid))
	for _, k := range valid {
		keep[k] = true
	}
	files, err := d.files()
	var failed []error
	if err != nil {
		failed = append(failed, err)
	}
	for _, file := range files {
		if isTemporary(file) {
			if err := removeTemporary(d.path(file)); err != nil {
				failed = append(failed, err)
			}
			continue
		}
		if k, ok := keyOf(file); ok && keep[k] {
			continue
		}
		r, err := d.read(file)
		if err == nil && r.Network == network {
			if err = os.Remove(d.path(file)); err == nil {
				removed++
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	if failed != nil {
		return removed, fmt.Errorf("delete records of pods that are gone: %w", joinFirst(failed))
	}
	return removed, nil
}

// Writable returns why no record can be written; nil if one can. It writes a file and removes it, and
// creates the directory. What killed processes have left of that is removed, because runtimes ask every few seconds.
func (d Dir) Writable() error {
	const file = "status"
	if err := d.withTemporary(file, []byte("tcpilot\n"), os.Remove); err != nil {
		return fmt.Errorf("write into directory of pods: %w", err)
	}
	_ = d.removeTemporaries(file) // the next one repeats it
	return nil
}

func (d Dir) path(file string) string { return filepath.Join(string(d), file) }

// files lists the names of records and temporary files in order.
func (d Dir) files() (names []string, err error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if !isOther(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// read reads one record. An empty file, which a crash of the host can leave, counts as none.
func (d Dir) read(file string) (r Record, err error) {
	path := d.path(file)
	// Before the file is read: if another one takes its place in between, Remove notices.
	if r.info, err = os.Lstat(path); err != nil {
		return r, err
	}
	data, err := regular.Read(path, maxRecord)
	if err != nil {
		return r, err
	}
	if len(data) == 0 {
		return r, &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	if err := json.Unmarshal(data, &r.Pod); err != nil {
		return r, fmt.Errorf("%s is not a record of a pod: %w", path, err)
	}
	if err := r.Check(); err != nil {
		return r, fmt.Errorf("%s is not a record of a pod: %w", path, err)
	}
	if fileOf(r.Key()) != file {
		return r, fmt.Errorf("%s is the record of another pod: container %s, interface %s", path, r.Container, r.Interface)
	}
	r.File = file
	return r, nil
}

func encode(p *pod.Pod) ([]byte, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(p); err != nil {
		return nil, err
	}
	if b.Len() > maxRecord {
		return nil, fmt.Errorf("it has %d bytes, at most %d are possible: are there large annotations?", b.Len(), maxRecord)
	}
	return b.Bytes(), nil
}

const temporarySuffix = ".tmp"

// temporaryPrefix begins the names of a record's temporary files. A record's own name cannot begin
// with a dot.
func temporaryPrefix(file string) string { return "." + file + "." }

func isTemporary(file string) bool {
	return strings.HasPrefix(file, ".") && strings.HasSuffix(file, temporarySuffix)
}

// remove removes a file, which may be gone already.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// joinFirst joins the first eight errors of a list that may be as long as the directory.
func joinFirst(all []error) error {
	const most = 8
	if len(all) <= most {
		return errors.Join(all...)
	}
	return errors.Join(append(all[:most:most], fmt.Errorf("%d files more", len(all)-most))...)
}

// separator is between container id and interface in a file's name. A container id cannot contain
// it, so that no two attachments have the same file.
const separator = "@"

const recordSuffix = ".json"

// fileOf is the name of the attachment's record. The key must be valid.
func fileOf(k pod.Key) string { return k.Container + separator + k.Interface + recordSuffix }

// keyOf is the attachment of a record's file name.
func keyOf(file string) (k pod.Key, ok bool) {
	name, ok := strings.CutSuffix(file, recordSuffix)
	if !ok {
		return k, false
	}
	k.Container, k.Interface, ok = strings.Cut(name, separator)
	return k, ok && k.Check() == nil
}
