package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/regular"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// maxJournal bounds the length of a journal: some ten thousand namespaces.
const maxJournal = 8 << 20

// journal is a file in state_dir that has what tcpilot has changed in network namespaces, so that it is
// taken back even after a crash. T is one change.
type journal[T any] struct {
	file string
	of   string // what the changes are, for errors
}

func journalOf[T any](cfg *config.Config, name, of string) journal[T] {
	return journal[T]{filepath.Join(cfg.StateDir, name), of}
}

// exists reports whether an earlier process may have left changes.
func (j journal[T]) exists() bool {
	_, err := os.Lstat(j.file)
	return !errors.Is(err, fs.ErrNotExist)
}

type journalRecord[T any] struct {
	Boot    string `json:"boot"`   // cookies of network namespaces are of one boot
	Changes []T    `json:"raised"` // one key for all journals: that of raised buffer limits
}

// read returns the changes of this boot.
func (j journal[T]) read() ([]T, error) {
	data, err := regular.Read(j.file, maxJournal)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal of %s: %w", j.of, err)
	}
	var r journalRecord[T]
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read journal of %s: %s: %w", j.of, j.file, err)
	}
	boot, err := sysctl.Read("kernel.random.boot_id")
	if err != nil || r.Boot != boot {
		return nil, err
	}
	return r.Changes, nil
}

// write replaces the journal; without changes there is none.
func (j journal[T]) write(changes []T) error {
	if err := j.replace(changes); err != nil {
		return fmt.Errorf("write journal of %s: %w", j.of, err)
	}
	return nil
}

func (j journal[T]) replace(changes []T) error {
	if len(changes) == 0 {
		if err := os.Remove(j.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	boot, err := sysctl.Read("kernel.random.boot_id")
	if err != nil {
		return err
	}
	data, err := json.Marshal(journalRecord[T]{boot, changes})
	if err != nil {
		return err
	}
	if len(data) > maxJournal {
		return fmt.Errorf("it would have %d bytes, more than %d", len(data), maxJournal)
	}
	// No sync: if the machine crashes, the changes in the kernel are lost with the journal.
	next := j.file + ".new"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	return os.Rename(next, j.file)
}

// setAside renames a journal that cannot be read, so that it is not overwritten.
func (j journal[T]) setAside() error {
	if err := os.Rename(j.file, j.file+".damaged"); err != nil {
		return fmt.Errorf("set aside journal of %s: %w", j.of, err)
	}
	return nil
}
