package store

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
)

// maxRecords bounds the file unless Keep asks for more: 256 Ki records of some 700
// bytes are 180 MB.
const maxRecords = 1 << 18

// Store is an open belief file. It is safe for concurrent use.
type Store struct {
	mu     sync.Mutex
	path   string
	unlock func() error
	file   *os.File // nil after Close
	boot   string
	count  int // records, without those that rebooted excludes
	limit  int
	// rebooted: records of single network namespaces in the file are of an earlier boot.
	rebooted bool
	expired  func(rule string, last int64) bool
}

var errClosed = errors.New("store is closed")

// Keep raises the limit of the file to at least n records, so that all paths that the engine
// may hold are restored after a restart.
func (s *Store) Keep(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = max(s.limit, n)
}

// Expire has Save drop records that have expired, except those that it changes. last is the latest use, Unix ns.
func (s *Store) Expire(expired func(rule string, last int64) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired = expired
}

// Load calls f for every record; f may keep it. An error of f ends the loading and is
// returned. f must not call the store.
func (s *Store) Load(f func(Record) error) error {
	return s.use("load beliefs", func() error {
		return s.each(func(e entry) error {
			k, err := parseKey(e.key)
			if err != nil {
				return err
			}
			return f(Record{Rule: k.Rule, Scope: k.Scope, Prefix: k.Prefix, Last: e.last, Belief: slices.Clone(e.belief)})
		})
	})
}

// Save writes the changed records and removes the deleted ones, all or none. A
// key in both is kept. If the file would exceed its limit, the least recently used records
// are dropped.
//
// It copies the file with the changes and puts the copy in its place; memory is needed
// for the changes only.
func (s *Store) Save(changed []Record, deleted []Key) error {
	if len(changed)+len(deleted) == 0 {
		return nil
	}
	return s.use("save beliefs", func() error {
		edits, err := encode(changed, deleted)
		if err != nil {
			return err
		}
		return s.rewrite(edits)
	})
}

// Close does not write: Save already has.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	err := errors.Join(s.file.Close(), s.unlock())
	s.file = nil
	if err != nil {
		return fmt.Errorf("close beliefs: %w", err)
	}
	return nil
}

func (s *Store) use(verb string, f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return fmt.Errorf("%s: %w", verb, errClosed)
	}
	if err := f(); err != nil {
		return fmt.Errorf("%s: %s: %w", verb, s.path, err)
	}
	return nil
}

// each calls f for every valid record of the file.
func (s *Store) each(f func(entry) error) error {
	_, err := scan(s.file, func(e entry) error {
		if s.rebooted && isScoped(e.key) {
			return nil
		}
		return f(e)
	})
	return err
}

// edits are changed records by their key in the file; those without a record are deleted.
type edits map[string]*Record

func encode(changed []Record, deleted []Key) (edits, error) {
	all := make(edits, len(changed)+len(deleted))
	for _, k := range deleted {
		key, err := appendKey(nil, k)
		if err != nil {
			return nil, err
		}
		all[string(key)] = nil
	}
	for i := range changed {
		r := &changed[i]
		key, err := appendKey(nil, r.key())
		if err != nil {
			return nil, err
		}
		if len(r.Belief) > maxBelief {
			return nil, fmt.Errorf("encode belief of %s: %d bytes, at most %d fit", r.Prefix, len(r.Belief), maxBelief)
		}
		all[string(key)] = r
	}
	return all, nil
}

// edited calls f for every record that the file has after the edits.
func (s *Store) edited(changes edits, f func(entry) error) error {
	err := s.each(func(e entry) error {
		if _, is := changes[string(e.key)]; is || s.expired != nil && s.expired(ruleOf(e.key), e.last) {
			return nil
		}
		return f(e)
	})
	for key, r := range changes {
		if err == nil && r != nil {
			err = f(entry{[]byte(key), r.Belief, r.Last})
		}
	}
	return err
}

// rewrite replaces the file by one with the edits. If it fails, the old file stays.
func (s *Store) rewrite(changes edits) error {
	drop, err := s.surplus(changes)
	if err != nil {
		return err
	}
	w, err := newWriter(s.path, s.boot)
	if err != nil {
		return err
	}
	count := 0
	err = s.edited(changes, func(e entry) error {
		if drop(e.last) {
			return nil
		}
		count++
		return w.put(e)
	})
	if err != nil {
		return errors.Join(err, w.abort())
	}
	file, err := w.commit()
	if err != nil {
		return err
	}
	s.file.Close()
	s.file, s.count, s.rebooted = file, count, false
	return nil
}

// surplus selects the records to drop, by their latest use. It leaves an eighth of the limit
// free, so that the file does not exceed its limit again at once.
func (s *Store) surplus(changes edits) (drop func(last int64) bool, err error) {
	none := func(int64) bool { return false }
	if s.count+len(changes) <= s.limit {
		return none, nil
	}
	var lasts []int64
	err = s.edited(changes, func(e entry) error { lasts = append(lasts, e.last); return nil })
	if err != nil || len(lasts) <= s.limit {
		return none, err
	}
	slices.Sort(lasts)
	surplus := len(lasts) - (s.limit - s.limit/8)
	oldest := int64(math.MaxInt64)
	if surplus < len(lasts) {
		oldest = lasts[surplus]
	}
	older, _ := slices.BinarySearch(lasts, oldest)
	ties := surplus - older // of the records last used at exactly that time
	return func(last int64) bool {
		if last == oldest && ties > 0 {
			ties--
			return true
		}
		return last < oldest
	}, nil
}
