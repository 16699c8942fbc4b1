package cc

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What is no file must not hold up those who want to load another: nobody ever
// writes to this FIFO.
func TestReadObject(t *testing.T) {
	dir := t.TempDir()
	file, fifo, link := filepath.Join(dir, "file"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	must(t, os.WriteFile(file, []byte("elf"), 0o600))
	must(t, unix.Mkfifo(fifo, 0o600))
	must(t, os.Symlink(fifo, link))
	for _, path := range []string{fifo, link, dir, "/dev/zero"} {
		if _, err := readObject(path); err == nil || !strings.Contains(err.Error(), path+" is no regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if elf, err := readObject(file); err != nil || string(elf) != "elf" {
		t.Errorf("%q, %v", elf, err)
	}
	if _, err := readObject(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
