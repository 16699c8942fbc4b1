package daemon

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// foundPods are pods without a record, because they began before tcpilot-cni was installed: the API server names them, and a process
// in the cgroup that the kubelet has made for a pod's UID leads to its network namespace. pods.mu protects it.
type foundPods struct {
	known    map[string]pod.Pod // by UID; those with the daemon's own namespace use the host's network
	searched time.Time
}

const (
	// searchPause is the shortest time between two looks through the cgroups for pods whose processes are not known: those of
	// a pod that is about to begin, or has ended, are never found.
	searchPause = 4 * time.Second
	// podDepth is how deep below the root of the hierarchy the cgroups of pods may be:
	// kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice, below those of what runs the kubelet.
	podDepth = 6
)

// withoutRecord are the pods of the API server that have no record, as far as their network namespaces are found. recorded are
// those with a record. The caller has pods.mu.
func (d *Daemon) withoutRecord(recorded []pod.Pod, now time.Time, checked map[podPlace]podCheck) (list []pod.Pod) {
	w := d.podAPI.watcher.Load()
	if w == nil {
		return nil
	}
	uids, cookies := map[string]bool{}, map[uint64]bool{d.pods.own: true}
	for i := range recorded {
		uids[recorded[i].UID], cookies[recorded[i].Cookie] = true, true
	}
	f := &d.pods.found
	known, missing := map[string]pod.Pod{}, map[string]pod.Pod{}
	lost := false
	for _, p := range w.Pods() {
		had, ok := f.known[p.UID]
		switch {
		case uids[p.UID] || p.Name == "":
		case ok && had.Cookie == d.pods.own:
			known[p.UID] = had
		case ok && d.stillThere(&had, now, checked):
			had.Annotations = p.Annotations
			known[p.UID] = had
		default:
			missing[p.UID], lost = p, lost || ok
		}
	}
	if len(missing) > 0 && (lost || now.Sub(f.searched) >= searchPause) {
		f.searched = now
		if err := findPods(missing, now, known); err != nil {
			d.log.Debug("pods without a record not found", "error", err)
		}
	}
	f.known = known
	for _, p := range known {
		if !cookies[p.Cookie] { // a runtime may pass no UID, so that the record has none
			cookies[p.Cookie] = true
			list = append(list, p)
		}
	}
	return list
}

func (d *Daemon) stillThere(p *pod.Pod, now time.Time, checked map[podPlace]podCheck) bool {
	_, err := d.pods.check(p, now, checked)
	return err == nil
}

// findPods looks for the network namespaces of pods by UID, and adds those that it finds.
func findPods(missing map[string]pod.Pod, now time.Time, to map[string]pod.Pod) error {
	root, err := cgroup.Root()
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil // it has ended meanwhile
		}
		if uid := pod.UIDOfCgroup(e.Name()); uid != "" {
			if p, ok := missing[uid]; ok {
				if p.NetNS, p.Cookie, err = netNSOfCgroup(path); err == nil {
					p.Cgroup, p.Added = strings.TrimPrefix(path, root), now
					to[uid] = p
				}
			}
			return fs.SkipDir // what is below may be named by the pod, which could claim to be another one
		}
		if strings.Count(strings.TrimPrefix(path, root), "/") >= podDepth {
			return fs.SkipDir
		}
		return nil
	})
}

// netNSOfCgroup is the network namespace of a cgroup's first process.
func netNSOfCgroup(dir string) (path string, cookie uint64, err error) {
	pid, err := cgroup.First(dir)
	if err != nil {
		return "", 0, err
	}
	path = fmt.Sprintf("/proc/%d/ns/net", pid)
	cookie, err = netns.Cookie(path)
	return path, cookie, err
}
