package cniconf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tcpilot/tcpilot/internal/regular"
)

const (
	maxConfig  = 4 << 20  // bytes of a network configuration
	maxProgram = 64 << 20 // bytes of the plugin
)

// temporarySuffix ends the names of files that are being written. Runtimes do not read them, because the suffix is
// not one of configExtensions.
const temporarySuffix = ".tcpilot-new"

func temporary(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+temporarySuffix)
}

// removeTemporaries removes the temporary files of processes that were killed. The caller has the lock.
func removeTemporaries(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, ".") && strings.HasSuffix(name, temporarySuffix) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
		}
	}
	return err
}

// read reads a network configuration. It refuses a symbolic link, because runtimes watch only the directory of
// the link, and would not notice that its target was changed.
func read(file string) ([]byte, error) {
	if info, err := os.Lstat(file); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return nil, fmt.Errorf("%s is a symbolic link: put the file itself there", file)
	}
	text, err := regular.Read(file, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("read network configuration: %w", err)
	}
	return text, nil
}

// replace writes next in place of a file whose contents were before. Owner and mode stay. Readers find the old
// or the new contents, also after a crash of the host. It fails if the file was changed meanwhile.
func replace(file string, before, next []byte) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	path := temporary(file)
	err = write(path, next, info)
	if err == nil {
		var now []byte
		if now, err = read(file); err == nil && !bytes.Equal(now, before) {
			err = fmt.Errorf("%s was changed meanwhile: try again", file)
		}
	}
	if err == nil {
		err = os.Rename(path, file)
	}
	if err != nil {
		return errors.Join(err, remove(path))
	}
	return syncDir(filepath.Dir(file))
}

// write writes a new file with the mode and the owner of another one, and syncs it to the disk.
func write(path string, data []byte, like fs.FileInfo) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if st, ok := like.Sys().(*syscall.Stat_t); ok && (st.Uid != uint32(os.Geteuid()) || st.Gid != uint32(os.Getegid())) {
		err = errors.Join(err, f.Chown(int(st.Uid), int(st.Gid)))
	}
	return errors.Join(err, f.Chmod(like.Mode().Perm()), f.Sync(), f.Close())
}

// copyProgram installs the plugin's program, unless the same one is installed already. A runtime may run it
// at any moment: it finds the old program or the new one.
func (n Node) copyProgram(from string) (copied bool, err error) {
	if from == n.Program() {
		return false, nil
	}
	data, err := regular.Read(from, maxProgram)
	if err != nil {
		return false, fmt.Errorf("read plugin: %w", err)
	}
	if there, err := regular.Read(n.Program(), maxProgram); err == nil && bytes.Equal(there, data) {
		return false, nil
	}
	info, err := os.Stat(from)
	if err != nil {
		return false, fmt.Errorf("read plugin: %w", err)
	}
	if err := os.MkdirAll(n.BinDir, 0o755); err != nil {
		return false, fmt.Errorf("install plugin: %w", err)
	}
	path := temporary(n.Program())
	if err = remove(path); err == nil {
		err = write(path, data, executable{info})
	}
	if err == nil {
		err = os.Rename(path, n.Program())
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("install plugin: %w", err), remove(path))
	}
	return true, syncDir(n.BinDir)
}

// executable is the mode and owner of an installed program: everybody may run it, and this process owns it.
type executable struct{ fs.FileInfo }

func (executable) Mode() fs.FileMode { return 0o755 }
func (executable) Sys() any          { return nil }

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
