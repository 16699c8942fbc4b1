package daemon

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// foundPods are pods without a record, because they began before tcpilot-cni was installed: the API server names them, and a process
// in the cgroup that the kubelet has made for a pod's UID leads to its network namespace. pods.mu protects it.
type foundPods struct {
	known    map[string]pod.Pod // by UID; those with the daemon's own namespace use the host's network
	waiting  map[string]bool    // UIDs that the latest search did not find
	searched time.Time
	pause    time.Duration // between that search and the next one
}

const (
	// leastSearchPause is the shortest time between two searches. It doubles, up to mostSearchPause, as long as
	// only pods are missing that the search before did not find: jobs that have ended stay at the API server.
	leastSearchPause = 4 * time.Second
	mostSearchPause  = time.Minute
	// hostRecheck is after how long a pod whose processes are all in the host's network is looked at again: it may have been about to begin.
	hostRecheck = time.Minute
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
	fresh := false
	for _, p := range w.Pods() {
		had, ok := f.known[p.UID]
		switch {
		case uids[p.UID] || p.Name == "":
		case ok && had.Cookie == d.pods.own:
			known[p.UID] = had
			if now.Sub(had.Added) >= hostRecheck {
				missing[p.UID] = p
			}
		case ok && d.stillThere(&had, now, checked):
			had.Annotations = p.Annotations
			known[p.UID] = had
		default:
			missing[p.UID], fresh = p, fresh || !f.waiting[p.UID]
		}
	}
	if len(missing) > 0 && f.isDue(fresh, now) {
		if err := findPods(missing, d.pods.own, now, known); err != nil {
			d.log.Debug("pods without a record not found", "error", err)
		}
		f.waiting = map[string]bool{}
		for uid := range missing {
			if _, found := known[uid]; !found {
				f.waiting[uid] = true
			}
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

// isDue reports whether it is time for a search, and notes that it is made. fresh says that the search before did not look for
// some of the missing pods, or found them.
func (f *foundPods) isDue(fresh bool, now time.Time) bool {
	if fresh {
		f.pause = 0
	}
	pause := max(f.pause, leastSearchPause)
	if now.Sub(f.searched) < pause {
		return false
	}
	f.searched, f.pause = now, min(2*pause, mostSearchPause)
	return true
}

func (d *Daemon) stillThere(p *pod.Pod, now time.Time, checked map[podPlace]podCheck) bool {
	_, err := d.pods.check(p, now, checked)
	return err == nil
}

// findPods looks for the network namespaces of pods by UID, and adds those that it finds. own is the daemon's own namespace.
func findPods(missing map[string]pod.Pod, own uint64, now time.Time, to map[string]pod.Pod) error {
	root, err := cgroup.Root()
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil // it has ended meanwhile
		}
		at := strings.TrimPrefix(path, root)
		if uid := pod.UIDOfCgroup(at); uid != "" {
			if p, ok := missing[uid]; ok && isRoots(e) {
				if p.NetNS, p.Cookie = netNSOfCgroup(path, own); p.Cookie != 0 {
					p.Cgroup, p.Added = at, now
					to[uid] = p
				}
			}
			return fs.SkipDir // what is below may be named by the pod, which could claim to be another one
		}
		if strings.Count(at, "/") >= podDepth {
			return fs.SkipDir
		}
		return nil
	})
}

// isRoots reports whether root owns a directory, so that no user has made it in a part of the hierarchy of their own.
func isRoots(e fs.DirEntry) bool {
	info, err := e.Info()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0
}

// netNSOfCgroup is the network namespace of the processes in a cgroup, other than the host's: a runtime may have processes of its own in
// a pod's cgroup. It is the host's if all are there, and 0 if there is none.
func netNSOfCgroup(dir string, own uint64) (path string, cookie uint64) {
	pids, err := cgroup.Processes(dir)
	if err != nil {
		return "", 0
	}
	host, _ := os.Readlink(netns.Own)
	for _, pid := range pids {
		at := fmt.Sprintf("/proc/%d/ns/net", pid)
		link, err := os.Readlink(at)
		switch {
		case err != nil:
			continue
		case link == host:
			path, cookie = at, own
			continue
		}
		found, err := netns.Cookie(at)
		if err == nil && found != own && isIn(pid, dir) {
			return at, found
		}
	}
	return path, cookie
}

// isIn reports whether a process is in a cgroup or below it: its id may have become another one's.
func isIn(pid int, dir string) bool {
	now, err := cgroup.OfProcess(pid)
	return err == nil && strings.Contains(now+"/", "/"+filepath.Base(dir)+"/")
}
