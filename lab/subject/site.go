package subject

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/lab/topology"
)

// site is a tuned host, with the process and directory of a tuner there.
type site struct {
	host    *topology.Host
	cgroup  *topology.Cgroup
	log     *tail
	process *process // nil while none runs
	// patience is how long the process may take to end.
	patience time.Duration
}

// sites are all tuned hosts.
type sites []*site

var errNoHost = errors.New("there is no host to tune")

func newSites(w World) (sites, error) {
	if len(w.Tuned) == 0 {
		return nil, errNoHost
	}
	var all sites
	for _, h := range w.Tuned {
		cg := w.Cgroups[h.Name]
		if cg == nil {
			return nil, fmt.Errorf("host %s has no cgroup", h.Name)
		}
		all = append(all, &site{host: h, cgroup: cg, log: &tail{}, patience: patience})
	}
	return all, nil
}

// start starts the process that tunes the site.
func (s *site) start(name string, cg *topology.Cgroup, cmd *exec.Cmd) error {
	p := &process{name: name + " on " + s.host.Name, log: s.log, patience: s.patience}
	if err := p.start(s.host, cg, cmd); err != nil {
		return err
	}
	s.process = p
	return nil
}

// end ends the processes of all sites, at the same time.
func (all sites) end() error {
	var running []*process
	for _, s := range all {
		if s.process != nil {
			running = append(running, s.process)
			s.process = nil
		}
	}
	return endAll(running)
}

// cpu is the processor time that the sites' cgroups have used.
func (all sites) cpu() (sum time.Duration, err error) {
	for _, s := range all {
		used, err := s.cgroup.CPU()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

func (all sites) text() string {
	var b strings.Builder
	for _, s := range all {
		if text := s.log.String(); text != "" {
			fmt.Fprintf(&b, "%s:\n%s", s.host.Name, text)
		}
	}
	return b.String()
}

// home is a directory of the run that stays from one Start to the next. It is made when it
// is first used.
type home struct {
	net  *topology.Net
	name string // of the subject
	path string
}

// hostDir returns the directory of a host in it, and makes it if it does not exist.
func (h *home) hostDir(host string) (string, error) {
	if h.path == "" {
		// A hash, because a name may have any characters, and the path of a Unix socket at
		// most 107 bytes (sun_path of unix(7)).
		hash := fnv.New32a()
		hash.Write([]byte(h.name))
		path, err := h.net.Dir(fmt.Sprintf("subject-%08x", hash.Sum32()))
		if err != nil {
			return "", err
		}
		h.path = path
	}
	dir := filepath.Join(h.path, host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make directory: %w", err)
	}
	return dir, nil
}

// remove removes the directory. Nothing may be mounted in it any more.
func (h *home) remove() error {
	if h.path == "" {
		return nil
	}
	path := h.path
	h.path = ""
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove directory: %w", err)
	}
	return nil
}
