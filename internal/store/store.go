package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// maxRecords bounds the file unless Keep asks for more: 256 Ki records of some 700
// bytes are 180 MB.
const maxRecords = 1 << 18

// Store is an open belief file. It is safe for concurrent use.
type Store struct {
	mu      sync.Mutex
	db      *bolt.DB
	path    string
	boot    string
	count   int
	limit   int
	unsound error // the database panicked: nothing more is asked of it
}

var errClosed = errors.New("store is closed")

// Keep makes room for at least n records, so that what the engine is configured to
// hold is there again after a restart.
func (s *Store) Keep(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = max(s.limit, n)
}

// Load calls f for every record. The record is f's to keep. An error of f ends
// the loading and is returned. f must not call the store.
func (s *Store) Load(f func(Record) error) error {
	return s.use("load beliefs", func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			return tx.Bucket(beliefsBucket).ForEach(func(key, value []byte) error {
				r, err := parseRecord(key, value)
				if err != nil {
					return err
				}
				r.Belief = slices.Clone(r.Belief)
				return f(r)
			})
		})
	})
}

// Save writes the changed records and removes the deleted ones, all or none. A
// key in both is kept. Beyond the file's limit the records that were not used
// for the longest time go.
func (s *Store) Save(changed []Record, deleted []Key) error {
	if len(changed)+len(deleted) == 0 {
		return nil
	}
	return s.use("save beliefs", func() error {
		count := s.count
		err := s.db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket(beliefsBucket)
			n, err := deleteAll(b, deleted)
			if err != nil {
				return err
			}
			count -= n
			if n, err = putAll(b, changed); err != nil {
				return err
			}
			count += n
			if n, err = trim(b, count, s.limit); err != nil {
				return err
			}
			count -= n
			return s.writeAbout(tx, count)
		})
		if err == nil {
			s.count = count
		}
		return err
	})
}

// Close writes nothing more: Save has done so.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	if s.unsound != nil {
		return nil // it may wait for a lock that the panic left behind
	}
	if err := db.Close(); err != nil {
		return fmt.Errorf("close beliefs: %w", err)
	}
	return nil
}

func (s *Store) use(verb string, f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return fmt.Errorf("%s: %w", verb, errClosed)
	}
	if s.unsound != nil {
		return fmt.Errorf("%s: %w", verb, s.unsound)
	}
	err := guard(f)
	if p := (*panicError)(nil); errors.As(err, &p) {
		s.unsound = err
		return fmt.Errorf("%s: %s: %w", verb, s.path, err)
	}
	shed(s.db)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", verb, s.path, err)
	}
	return nil
}

// deleteAll returns how many of the keys there were.
func deleteAll(b *bolt.Bucket, keys []Key) (n int, err error) {
	var key []byte
	for _, k := range keys {
		if key, err = appendKey(key[:0], k); err != nil {
			return n, err
		}
		if b.Get(key) == nil {
			continue
		}
		if err := b.Delete(key); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// putAll returns how many of the records were not there before.
func putAll(b *bolt.Bucket, records []Record) (n int, err error) {
	for i := range records {
		r := &records[i]
		key, err := appendKey(nil, r.Key())
		if err != nil {
			return n, err
		}
		// The database keeps the value until the transaction ends.
		value, err := appendValue(make([]byte, 0, headLen+len(r.Belief)), key, r)
		if err != nil {
			return n, err
		}
		if b.Get(key) == nil {
			n++
		}
		if err := b.Put(key, value); err != nil {
			return n, err
		}
	}
	return n, nil
}

// trim takes a file over its limit an eighth below it, so that it is not called
// for again at once, and returns how many records went.
func trim(b *bolt.Bucket, count, limit int) (n int, err error) {
	if count <= limit {
		return 0, nil
	}
	type entry struct {
		key  []byte
		last int64
	}
	all := make([]entry, 0, count)
	err = b.ForEach(func(key, value []byte) error {
		if len(value) < headLen {
			return errChecksum
		}
		all = append(all, entry{slices.Clone(key), lastOf(value)})
		return nil
	})
	if err != nil {
		return 0, err
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.last, b.last) })
	all = all[:count-(limit-limit/8)]
	for _, e := range all {
		if err := b.Delete(e.key); err != nil {
			return 0, err
		}
	}
	return len(all), nil
}
