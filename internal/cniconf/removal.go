package cniconf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tcpilot/tcpilot/internal/cnispec"
	"github.com/tcpilot/tcpilot/internal/filelock"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/regular"
)

// uninstalledFile is the network configuration that takes the place of mainFile until the last pod of the main plugin has ended. containerd
// ends pods with its present configuration, and cannot without one. The name comes behind that of any other plugin's.
const uninstalledFile = "zz-tcpilot-uninstalled.conflist"

func (n Node) uninstalled() string { return filepath.Join(n.ConfDir, uninstalledFile) }

// UninstallMain puts a configuration with which pods only end in the place of the one that InstallMain has written, and returns what it
// removed. Pods that run are not affected; new ones do not start until the node has another network plugin. Uninstall has
// to follow: it removes that configuration, or has it wait for pods.
func (n Node) UninstallMain() (did []string, err error) {
	release, err := n.lock()
	if err != nil {
		return nil, err
	}
	defer release()
	file := filepath.Join(n.ConfDir, mainFile)
	text, err := regular.Read(file, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		// The target may exist for the container runtime only. If it does not, the runtime refuses all configurations (go-cni, loadFromConfDir).
		err = fmt.Errorf("%s is a symbolic link whose target does not exist here: remove it yourself", file)
	}
	var ending []byte
	began := false
	if err == nil {
		if ending, err = onlyEnding(text); err != nil {
			err = fmt.Errorf("%s is not of 'tcpilot cni install --main': remove it yourself", file)
		}
	}
	if err == nil {
		began, err = n.beginRemoval()
	}
	if err == nil { // before the other one is removed: at no moment there is none
		if _, err = writeNew(n.uninstalled(), ending); err == nil {
			err = os.Remove(file)
		}
		if err != nil && began { // otherwise the plugin would refuse pods with the configuration that stays
			err = errors.Join(err, remove(n.uninstalled()), podrecord.Dir(n.Records).EndRemoval())
		}
	}
	if err == nil {
		err = syncDir(n.ConfDir)
	}
	if err != nil {
		return nil, fmt.Errorf("remove network configuration: %w", err)
	}
	return []string{"removed " + file}, nil
}

// onlyEnding is a configuration of InstallMain with the key by which the plugin refuses pods.
func onlyEnding(text []byte) ([]byte, error) {
	if !isMain(text) {
		return nil, errors.New("it has another network")
	}
	c, err := parse(text)
	if err != nil {
		return nil, err
	}
	at := c.plugins[0].start + 1 // behind {
	return splice(text, at, at, fmt.Sprintf("%q: true, ", cnispec.UninstalledKey)), nil
}

// beginRemoval writes that the plugin is to be removed, and reports whether that is new. The caller has the lock.
func (n Node) beginRemoval() (began bool, err error) {
	inode, err := inodeOf(n.ConfDir)
	if err != nil {
		return false, err
	}
	d := podrecord.Dir(n.Records)
	next := podrecord.Removal{ConfDir: n.ConfDir, BinDir: n.BinDir, Inode: inode, Since: time.Now().UTC().Truncate(time.Second)}
	r, err := d.Removal()
	began = err == nil && r == nil
	if err == nil && r != nil && !r.Since.IsZero() { // otherwise it is damaged
		if next.Since = r.Since; *r == next {
			return false, nil
		}
	}
	return began, d.BeginRemoval(&next)
}

func inodeOf(dir string) (uint64, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", dir, err)
	}
	return st.Ino, nil
}

// cancelRemoval forgets a removal that waits for pods, so that their end does not remove the program. The caller has the lock.
func (n Node) cancelRemoval() (did []string, err error) {
	d := podrecord.Dir(n.Records)
	if r, err := d.Removal(); err == nil && r == nil {
		return nil, nil
	}
	if err := d.EndRemoval(); err != nil {
		return nil, err
	}
	return []string{"cancelled the removal of " + n.Program()}, nil
}

// removeUninstalled removes the configuration that is only for the end of pods.
func (n Node) removeUninstalled() error {
	if err := remove(n.uninstalled()); err != nil {
		return fmt.Errorf("remove network configuration: %w", err)
	}
	return syncDir(n.ConfDir)
}

// finish removes what is left of the plugin when no network configuration has it: unless pods wait, or by force. The caller has the lock.
func (n Node) finish(force bool) (did []string, waits podrecord.Waits, err error) {
	d := podrecord.Dir(n.Records)
	left := slices.DeleteFunc([]string{n.uninstalled(), n.Program()}, func(file string) bool {
		_, err := os.Lstat(file)
		return errors.Is(err, fs.ErrNotExist)
	})
	if len(left) == 0 {
		return nil, waits, d.EndRemoval()
	}
	if _, err := n.beginRemoval(); err != nil { // before the records are read
		return nil, waits, err
	}
	if !force {
		if waits, err = d.Waits(); err != nil || !waits.None() {
			return nil, waits, err
		}
	}
	for _, file := range left {
		if err := os.Remove(file); err != nil {
			return did, waits, fmt.Errorf("remove plugin: %w", err)
		}
		did = append(did, "removed "+file)
		if err := syncDir(filepath.Dir(file)); err != nil { // otherwise a crash of the host may bring it back
			return did, waits, fmt.Errorf("remove plugin: %w", err)
		}
	}
	if !force {
		n.removeLeases()
	}
	return did, waits, d.EndRemoval()
}

// removeLeases removes what host-local keeps of a network that has no addresses any more: a lock, and the address that was given last.
func (n Node) removeLeases() {
	if n.Leases == "" {
		return
	}
	dir := filepath.Join(n.Leases, cnispec.MainNetwork)
	entries, err := os.ReadDir(dir)
	if err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { _, err := netip.ParseAddr(e.Name()); return err == nil }) {
		return
	}
	for _, e := range entries {
		if name := e.Name(); name == "lock" || strings.HasPrefix(name, "last_reserved_ip.") {
			os.Remove(filepath.Join(dir, name))
		}
	}
	os.Remove(dir) // stays if it has something else
}

// lockLimit is how long Finish waits for another process that installs or removes the plugin: the command of a runtime has at least a second, and the
// next one, or that process, finishes the removal.
const lockLimit = 100 * time.Millisecond

// Finish does the rest of an Uninstall that has waited for pods, if it need not wait any more, and returns what it removed. The plugin calls it at the
// end of each pod, while other processes of it may do the same.
//
// It does nothing where the directories of Uninstall are others, as in another mount namespace: then the process that waits does it
// ('tcpilot cni uninstall --follow').
func Finish(records, leases string) (did []string, err error) {
	d := podrecord.Dir(records)
	r, err := d.Removal()
	if err != nil || r == nil {
		return nil, err
	}
	if waits, err := d.Waits(); err != nil || !waits.None() {
		return nil, err
	}
	n := Node{ConfDir: r.ConfDir, BinDir: r.BinDir, Records: records, Leases: leases}
	inode, err := inodeOf(n.ConfDir)
	here := err == nil && inode == r.Inode
	if here {
		release, err := n.lockBy(func(dir *os.File) error { return filelock.WaitAtMost(dir, lockLimit) })
		if held := (*filelock.HeldError)(nil); errors.As(err, &held) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		defer release()
	}
	if now, err := d.Removal(); err != nil || now == nil || *now != *r {
		return nil, err // it is finished or cancelled
	}
	if !here {
		n.removeLeases() // the process that waits may not see them
		return nil, nil
	}
	if has, err := n.hasPlugin(); err != nil || has {
		return nil, err // somebody has put it there again, by hand
	}
	did, _, err = n.finish(false)
	return did, err
}

// hasPlugin reports whether pods may start with the plugin.
func (n Node) hasPlugin() (bool, error) {
	files, err := n.files()
	for _, file := range files {
		text, failed := regular.Read(file, maxConfig)
		if errors.Is(failed, fs.ErrNotExist) {
			continue
		}
		if failed != nil || bytes.Contains(text, []byte(Type)) {
			return true, failed
		}
	}
	return false, err
}
