package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// lockWait is how long Open waits for another process to close the file.
const lockWait = time.Second

var (
	aboutBucket   = []byte("about")
	aboutKey      = []byte("about")
	beliefsBucket = []byte("beliefs")
)

// schema counts the incompatible layouts of the file. A file of another schema
// is not migrated: what was learned is learned again.
const schema = 1

const format = "tcpilot beliefs"

type about struct {
	Format string `json:"format"`
	Schema int    `json:"schema"`
	// Boot is the boot in which the file was last opened: cookies of network
	// namespaces start over with the next.
	Boot string `json:"boot"`
	// Records is how many there are: a page that lost some of its own looks
	// sound.
	Records int `json:"records"`
}

// bootID is where the kernel names the current boot.
var bootID = "/proc/sys/kernel/random/boot_id"

// untrusted is why a file cannot be used, where a fresh one can.
type untrusted struct{ why string }

func (u *untrusted) Error() string { return u.why }

// Open opens or creates the belief file at path. A file that is damaged, foreign
// or of another schema is moved aside, and moved says so; the store then starts
// empty. Records of a single network namespace do not outlive a reboot.
func Open(path string) (s *Store, moved string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, "", fmt.Errorf("open beliefs: %w", err)
	}
	s, err = open(path)
	if u := (*untrusted)(nil); errors.As(err, &u) {
		aside, err := moveAside(path)
		if err != nil {
			return nil, "", fmt.Errorf("open beliefs: %s: %s, and it cannot be moved aside: %w", path, u.why, err)
		}
		moved = fmt.Sprintf("%s cannot be used: %s; moved to %s", path, u.why, aside)
		s, err = open(path)
		if err != nil {
			return nil, moved, fmt.Errorf("open beliefs: %s: %w", path, err)
		}
		return s, moved, nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("open beliefs: %s: %w", path, err)
	}
	return s, "", nil
}

// moveAside renames a file to a name that is free.
func moveAside(path string) (aside string, err error) {
	base := path + ".corrupt-" + time.Now().UTC().Format("20060102T150405Z")
	for i := 1; ; i++ {
		aside = base
		if i > 1 {
			aside = fmt.Sprintf("%s-%d", base, i)
		}
		if _, err := os.Lstat(aside); errors.Is(err, os.ErrNotExist) {
			return aside, os.Rename(path, aside)
		}
	}
}

func open(path string) (*Store, error) {
	if err := verify(path); err != nil {
		return nil, err
	}
	s := &Store{path: path, limit: maxRecords}
	err := guard(func() (err error) {
		s.db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout:      lockWait,
			FreelistType: bolt.FreelistMapType,
			NoStatistics: true,
		})
		return err
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, errLocked
	}
	if err != nil {
		return nil, distrust(err)
	}
	if err := guard(s.prepare); err != nil {
		if p := (*panicError)(nil); !errors.As(err, &p) {
			s.db.Close() // after a panic it may wait for a lock that nobody frees
		}
		return nil, distrust(err)
	}
	shed(s.db)
	return s, nil
}

var errLocked = fmt.Errorf("another process has it open (waited %v)", lockWait)

// verify checks the file's structure under a lock of its own, since one that is
// being written looks damaged.
func verify(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	if info.Size() == 0 {
		return nil
	}
	if err := waitLock(file); err != nil {
		return err
	}
	if info, err = file.Stat(); err != nil {
		return err
	}
	data, err := unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	defer unix.Munmap(data)
	if err := verifyFile(data); err != nil {
		return &untrusted{err.Error()}
	}
	return nil
}

func waitLock(file *os.File) error {
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if time.Since(start) > lockWait {
			return errLocked
		}
	}
}

// prepare sets up a new file and checks an old one, every record of it.
func (s *Store) prepare() error {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return err
	}
	s.boot = strings.TrimSpace(string(boot))
	return s.db.Update(func(tx *bolt.Tx) error {
		was := about{Boot: s.boot}
		if first, _ := tx.Cursor().First(); first != nil {
			if was, err = readAbout(tx); err != nil {
				return err
			}
		}
		b, err := tx.CreateBucketIfNotExists(beliefsBucket)
		if err != nil {
			return err
		}
		if err := check(b, was.Records); err != nil {
			return err
		}
		s.count = was.Records
		if was.Boot != s.boot {
			n, err := deleteScoped(b)
			if err != nil {
				return err
			}
			s.count -= n
		}
		return s.writeAbout(tx, s.count)
	})
}

func (s *Store) writeAbout(tx *bolt.Tx, count int) error {
	b, err := tx.CreateBucketIfNotExists(aboutBucket)
	if err != nil {
		return err
	}
	text, err := json.Marshal(about{format, schema, s.boot, count})
	if err != nil {
		return err
	}
	return b.Put(aboutKey, text)
}

func readAbout(tx *bolt.Tx) (about, error) {
	var a about
	b := tx.Bucket(aboutBucket)
	if b == nil || json.Unmarshal(b.Get(aboutKey), &a) != nil || a.Format != format {
		return a, &untrusted{"it is a database of another program"}
	}
	if a.Schema != schema {
		return a, &untrusted{fmt.Sprintf("it has schema %d, this version of tcpilot reads schema %d", a.Schema, schema)}
	}
	return a, nil
}

// check reads every record.
func check(b *bolt.Bucket, want int) error {
	count := 0
	err := b.ForEach(func(key, value []byte) error {
		if _, err := parseRecord(key, value); err != nil {
			return &untrusted{fmt.Sprintf("record %d is damaged: %v", count+1, err)}
		}
		count++
		return nil
	})
	if err == nil && count != want {
		return &untrusted{fmt.Sprintf("it has %d records of %d", count, want)}
	}
	return err
}

// deleteScoped removes the records of single network namespaces, which sort
// after the shared ones, and returns how many they were.
func deleteScoped(b *bolt.Bucket) (n int, err error) {
	var keys [][]byte
	c := b.Cursor()
	for key, _ := c.Seek([]byte{7: 1}); key != nil; key, _ = c.Next() {
		keys = append(keys, slices.Clone(key))
	}
	for _, key := range keys {
		if err := b.Delete(key); err != nil {
			return 0, err
		}
	}
	return len(keys), nil
}

// distrust tells a file that is at fault from surroundings that are: the latter
// have an error number.
func distrust(err error) error {
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return err
	}
	if u := (*untrusted)(nil); errors.As(err, &u) {
		return err
	}
	return &untrusted{err.Error()}
}

// panicError is a panic of the database, which takes a damaged page for its own
// mistake.
type panicError struct{ value any }

func (p *panicError) Error() string { return fmt.Sprintf("database panicked: %v", p.value) }

// guard turns panics into errors, also the fault of reading a mapped page that
// is no longer in the file.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v}
		}
	}()
	return f()
}
