package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/regular"
)

// podRecord is the record of a pod in a file.
type podRecord struct {
	pod.Pod
	file string // name in the directory
	info fs.FileInfo
}

// podRecords is where the records of pods are.
type podRecords interface {
	// List returns the records, and which cannot be read. There are none if the directory does
	// not exist.
	List() (records []podRecord, bad []api.RefusedPod, err error)
	// Remove removes a record, unless another one has taken its place since it was read.
	Remove(r *podRecord) error
}

// recordDir is a directory with a file CONTAINER@INTERFACE.json for each pod. A name that begins with a
// dot is that of a file that is being written.
type recordDir string

// maxRecord is the greatest length of a record, bytes. All annotations of a pod together have at
// most 256 KiB (Kubernetes, TotalAnnotationSizeLimitB), which JSON may write as six times as much.
const maxRecord = 2 << 20

func (d recordDir) List() (records []podRecord, bad []api.RefusedPod, err error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list records of pods: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || !strings.HasSuffix(name, ".json") {
			continue
		}
		r, err := d.read(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			bad = append(bad, api.RefusedPod{Record: name, Pod: r.name(), Why: err.Error()})
		default:
			records = append(records, r)
		}
	}
	return records, bad, nil
}

// name is the name of the pod, if it could be read.
func (r *podRecord) name() string {
	if r.Container == "" && r.Name == "" {
		return ""
	}
	return r.FullName()
}

func (d recordDir) read(name string) (r podRecord, err error) {
	r.file = name
	path := filepath.Join(string(d), name)
	if r.info, err = os.Lstat(path); err != nil {
		return r, err
	}
	data, err := regular.Read(path, maxRecord)
	if err != nil {
		return r, err
	}
	if len(data) == 0 { // a crash of the host can leave one
		return r, fs.ErrNotExist
	}
	var p pod.Pod
	if err := json.Unmarshal(data, &p); err != nil {
		return r, fmt.Errorf("not a record of a pod: %w", err)
	}
	if err := checkPod(&p); err != nil {
		return r, err
	}
	r.Pod = p
	return r, nil
}

func (d recordDir) Remove(r *podRecord) error {
	path := filepath.Join(string(d), r.file)
	now, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("remove record of pod: %w", err)
	case !os.SameFile(now, r.info) || !now.ModTime().Equal(r.info.ModTime()):
		return errors.New("remove record of pod: it was written again meanwhile")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of pod: %w", err)
	}
	return nil
}

// podWord is what names of pods, of their namespaces and of containers consist of: names are DNS
// labels and subdomains (RFC 1123), ids are as the CNI specification has them. They are shown on
// terminals and in metrics.
var podWord = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}$`)

// checkPod says what is wrong with a record.
func checkPod(p *pod.Pod) error {
	switch {
	case !podWord.MatchString(p.Container):
		return fmt.Errorf("%.40q cannot be the id of a container", p.Container)
	case (p.Namespace != "" || p.Name != "") && !podWord.MatchString(p.Namespace):
		return fmt.Errorf("%.40q cannot be the namespace of a pod", p.Namespace)
	case (p.Namespace != "" || p.Name != "") && !podWord.MatchString(p.Name):
		return fmt.Errorf("%.40q cannot be the name of a pod", p.Name)
	case p.Cookie == 0:
		return errors.New("it has no cookie of a network namespace")
	case !filepath.IsAbs(p.NetNS):
		return fmt.Errorf("%.40q is not the path of a network namespace", p.NetNS)
	}
	return nil
}
