package podrecord

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/regular"
)

// Removal is a removal of the CNI plugin from the node that waits for pods: 'tcpilot cni uninstall' begins it, and who ends the
// last pod finishes it.
//
// It is written before the records are read, and the plugin writes a record before it looks for a removal, and then for its own program. So either
// the pod is refused, or the removal waits for it: one that has ended has removed the program.
type Removal struct {
	ConfDir string    `json:"conf_dir"`       // of network configurations
	BinDir  string    `json:"bin_dir"`        // of plugins
	Inode   uint64    `json:"conf_dir_inode"` // of ConfDir: in another mount namespace, another directory may have its path
	Since   time.Time `json:"since"`
}

const (
	removalFile = ".removal"
	maxRemoval  = 64 << 10 // bytes: two paths (PATH_MAX is 4096)
	// stoppedSuffix ends the names of files of attachments whose DEL came, and comes again.
	stoppedSuffix = ".stopped"
	// stoppedLimit is how long after one DEL of an attachment the next one is awaited. The kubelet removes sandboxes of pods that have ended
	// once a minute (ContainerGCPeriod).
	stoppedLimit = 5 * time.Minute
	// pairLimit is how soon after StopPodSandbox the kubelet calls RemovePodSandbox when it removes a sandbox (containerGC.removeSandbox): at once, but
	// the runtime may be slow.
	pairLimit = 30 * time.Second
	repeated  = "repeated" // contents of a file after a DEL of a namespace that is gone
)

// isOther reports whether a file of the directory is about a removal, and not a record.
func isOther(file string) bool {
	return file == removalFile || strings.HasPrefix(file, ".") && strings.HasSuffix(file, stoppedSuffix)
}

// Removal returns the removal that waits for pods; nil if there is none. What a crash of the host has left of its file is one of
// which nothing is known: it has to be begun again, or cancelled.
func (d Dir) Removal() (*Removal, error) {
	data, err := regular.Read(d.path(removalFile), maxRemoval)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read removal of the CNI plugin: %w", err)
	}
	r := new(Removal)
	if json.Unmarshal(data, r) != nil {
		*r = Removal{}
	}
	return r, nil
}

// BeginRemoval writes a removal in place of a previous one.
func (d Dir) BeginRemoval(r *Removal) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = d.withTemporary(removalFile, data, func(path string) error { return os.Rename(path, d.path(removalFile)) })
	}
	if err != nil {
		return fmt.Errorf("write removal of the CNI plugin: %w", err)
	}
	return nil
}

// EndRemoval forgets a removal, which is finished or cancelled. It is not an error if there is none.
func (d Dir) EndRemoval() error {
	err := remove(d.path(removalFile))
	entries, listed := os.ReadDir(string(d))
	if errors.Is(listed, fs.ErrNotExist) {
		listed = nil
	}
	for _, e := range entries {
		if isOther(e.Name()) {
			err = errors.Join(err, remove(d.path(e.Name())))
		}
	}
	if err = errors.Join(err, listed); err != nil {
		return fmt.Errorf("end removal of the CNI plugin: %w", err)
	}
	return nil
}

func (d Dir) stoppedPath(k pod.Key) string { return d.path("." + fileOf(k) + stoppedSuffix) }

// Stopped remembers that DEL of an attachment came, and may be repeated: as long as the network namespace at the path exists, or, without a
// path, until Repeated or the limit. A removal waits for that, because the runtime could not end the pod otherwise.
func (d Dir) Stopped(k pod.Key, netns string) error {
	err := d.withTemporary(fileOf(k), []byte(netns), func(path string) error { return os.Rename(path, d.stoppedPath(k)) })
	if err != nil {
		return fmt.Errorf("note DEL of pod: %w", err)
	}
	return nil
}

// Repeated remembers that DEL of an attachment came whose namespace is gone. The kubelet has containerd stop a sandbox, later stop it again and
// remove it, and each executes DEL: the second of two that follow each other at once is the last one.
func (d Dir) Repeated(k pod.Key) error {
	info, err := os.Lstat(d.stoppedPath(k))
	text, _ := regular.Read(d.stoppedPath(k), maxRemoval)
	if err == nil && string(text) == repeated && age(info) < pairLimit {
		return remove(d.stoppedPath(k))
	}
	return d.Stopped(k, repeated)
}

// isAwaited reports whether DEL of an attachment may be repeated.
func (d Dir) isAwaited(file string) bool {
	info, err := os.Lstat(d.path(file))
	text, failed := regular.Read(d.path(file), maxRemoval)
	if err != nil || failed != nil {
		return false // it came meanwhile
	}
	if filepath.IsAbs(string(text)) {
		return !isGone(string(text))
	}
	return age(info) < stoppedLimit
}

// age is the age of a file, or how far in the future its time is, if the clock was set back: a file counts as new for at most twice the limit.
func age(info fs.FileInfo) time.Duration { return time.Since(info.ModTime()).Abs() }

// Waits are those for which a removal waits.
type Waits struct {
	Pods    []string // whose end needs the plugin, or container ids
	Gone    int      // of Pods: those whose network namespaces do not exist any more, so that a runtime may not end them
	Stopped int      // attachments (sandboxes of pods) that have ended, whose next DEL is awaited
}

// None reports whether a removal need not wait.
func (w *Waits) None() bool { return len(w.Pods) == 0 && w.Stopped == 0 }

// Waits lists the pods for whose end a runtime may execute the plugin. A runtime that executes the plugins of its present
// configuration does not, if the plugin was a chained one, and leaves the record, which only a daemon removes. Therefore
// pods whose network namespace is gone do not count: runtimes remove it after DEL. An interface that the main plugin
// made counts until DEL has removed it. Waits removes the notes of DELs that are not awaited any more.
func (d Dir) Waits() (w Waits, err error) {
	records, _, err := d.List()
	if err != nil {
		return w, err
	}
	for i := range records {
		r, gone := &records[i], isGone(records[i].NetNS)
		if gone && !r.Made {
			continue
		}
		if gone {
			w.Gone++
		}
		name := r.Container
		if r.Name != "" {
			name = r.FullName()
		}
		w.Pods = append(w.Pods, name)
	}
	entries, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return w, fmt.Errorf("list records of pods: %w", err)
	}
	for _, e := range entries {
		switch file := e.Name(); {
		case file == removalFile || !isOther(file):
		case d.isAwaited(file):
			w.Stopped++
		default:
			_ = remove(d.path(file)) // a node may end thousands of pods before the removal ends; EndRemoval reports errors
		}
	}
	return w, nil
}

// isGone reports whether the file of a network namespace does not exist any more. If its directory does not exist
// either, this process may see another file system than the container runtime does.
func isGone(path string) bool {
	_, err := os.Lstat(path)
	_, noDir := os.Stat(filepath.Dir(path))
	return errors.Is(err, fs.ErrNotExist) && noDir == nil
}
