package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tcpilot/tcpilot/internal/buffers"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/regular"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// bufferJournalName is the file in state_dir that has the raised buffer limits, so that they
// are taken back even after a crash.
const bufferJournalName = "buffers.json"

// maxBufferJournal bounds its length: some ten thousand namespaces.
const maxBufferJournal = 8 << 20

// bufferJournal is the path of the journal.
type bufferJournal string

func journalIn(cfg *config.Config) bufferJournal {
	return bufferJournal(filepath.Join(cfg.StateDir, bufferJournalName))
}

// exists reports whether an earlier process may have left raised limits.
func (j bufferJournal) exists() bool {
	_, err := os.Lstat(string(j))
	return !errors.Is(err, fs.ErrNotExist)
}

type bufferRecord struct {
	Boot   string           `json:"boot"` // cookies of network namespaces are of one boot
	Raised []buffers.Raised `json:"raised"`
}

// read returns the raised limits of this boot.
func (j bufferJournal) read() ([]buffers.Raised, error) {
	data, err := regular.Read(string(j), maxBufferJournal)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read raised buffer limits: %w", err)
	}
	var r bufferRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read raised buffer limits: %s: %w", string(j), err)
	}
	boot, err := sysctl.Read("kernel.random.boot_id")
	if err != nil || r.Boot != boot {
		return nil, err
	}
	return r.Raised, nil
}

// write replaces the journal; without raised limits there is none.
func (j bufferJournal) write(raised []buffers.Raised) error {
	if len(raised) == 0 {
		if err := os.Remove(string(j)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("note raised buffer limits: %w", err)
		}
		return nil
	}
	boot, err := sysctl.Read("kernel.random.boot_id")
	if err != nil {
		return fmt.Errorf("note raised buffer limits: %w", err)
	}
	data, err := json.Marshal(bufferRecord{boot, raised})
	if err != nil {
		return fmt.Errorf("note raised buffer limits: %w", err)
	}
	// No sync: a journal that the machine lost in a crash is of an earlier boot.
	next := string(j) + ".new"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return fmt.Errorf("note raised buffer limits: %w", err)
	}
	if err := os.Rename(next, string(j)); err != nil {
		return fmt.Errorf("note raised buffer limits: %w", err)
	}
	return nil
}

// setAside renames a journal that cannot be read, so that it is not overwritten.
func (j bufferJournal) setAside() error {
	if err := os.Rename(string(j), string(j)+".damaged"); err != nil {
		return fmt.Errorf("set aside the note of raised buffer limits: %w", err)
	}
	return nil
}
