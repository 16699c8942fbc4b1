package host

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
)

// NetNS is a network namespace that this process can find.
type NetNS struct {
	Inode  uint64 // in nsfs; may be reused once the namespace is gone
	Cookie uint64 // SO_NETNS_COOKIE; not reused until reboot
	Name   string // last part of the path of its bind mount; empty if it has none
	Path   string // of its bind mount, or of a process in it (/proc/PID/ns/net): see In
	Own    bool   // the namespace of this process
}

// In runs f on a thread in the namespace. It fails with fs.ErrNotExist if Path leads to another namespace by now:
// because this one is gone, or because the process of Path has moved, which Poll may not know yet.
func (ns NetNS) In(f func() error) error { return netns.InSame(ns.Path, ns.Cookie, f) }

// NetNSList lists the network namespaces that a process is in or that are bind mounted.
// It does not find a namespace that only a thread, a socket or a descriptor keeps alive.
// It is not safe for concurrent use.
type NetNSList struct {
	mountinfo *os.File
	polls     int
	stamp     string
	mounts    map[int]netNSMount // by mount id
	procs     map[int]netNSProc  // by process id
	young     int                // entries of procs that are not settled
	list      []NetNS
}

type netNSMount struct {
	inode uint64
	point string
}

type netNSProc struct {
	inode uint64
	// settled: two polls saw it in the same namespace. The first process of a
	// container is often seen between its fork and its unshare.
	settled bool
}

// rescanEvery is the number of polls after which every process is read again, because one
// may have moved without a change in what Poll compares.
const rescanEvery = 16

// NewNetNSList prepares a list; call Poll for its contents and Close at the end.
func NewNetNSList() (*NetNSList, error) {
	// Not by os.Open: the runtime's poller would consume the kernel's events.
	const path = "/proc/self/mountinfo"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: open %s: %w", path, err)
	}
	return &NetNSList{mountinfo: os.NewFile(uintptr(fd), path)}, nil
}

// Close closes the file that the list keeps open.
func (l *NetNSList) Close() error { return l.mountinfo.Close() }

// Poll lists the namespaces in the order of their cookies, and reports whether the list differs
// from that of the last call. It does next to nothing as long as no process and no mount came or
// went. The caller must not change the list.
func (l *NetNSList) Poll() (list []NetNS, changed bool, err error) {
	// Taken before the scan: the next poll then finds processes that start during the
	// scan.
	stamp, err := processStamp()
	if err != nil {
		return l.list, false, err
	}
	rescan := l.polls%rescanEvery == 0
	mounts := l.mounts
	if rescan || l.mountsChanged() {
		if mounts, err = l.readMounts(); err != nil {
			return l.list, false, err
		}
	} else if stamp == l.stamp && l.young == 0 {
		l.polls++
		return l.list, false, nil
	}
	procs, err := l.readProcs(rescan)
	if err != nil {
		return l.list, false, err
	}
	list = l.build(mounts, procs)
	changed = !slices.Equal(list, l.list)
	l.polls++
	l.stamp, l.mounts, l.procs, l.list = stamp, mounts, procs, list
	return list, changed, nil
}

// Rescan has the next Poll read every process again.
func (l *NetNSList) Rescan() { l.polls = 0 }

// processStamp changes whenever a process or thread came or went. It consists of two
// fields of /proc/loadavg: the number of threads, and the latest id. Ids are given out in
// sequence: if the latest id is the same, no thread came, and if the number is the same
// too, none went.
func processStamp() (string, error) {
	line, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", fmt.Errorf("list network namespaces: %w", err)
	}
	f := strings.Fields(string(line)) // 0.20 0.18 0.12 1/80 11206
	if len(f) != 5 {
		return "", fmt.Errorf("list network namespaces: /proc/loadavg is %q", line)
	}
	_, threads, _ := strings.Cut(f[3], "/")
	return threads + " " + f[4], nil
}

// mountsChanged asks the kernel whether a mount came or went since the last call
// (proc_pid_mounts(5)).
func (l *NetNSList) mountsChanged() bool {
	fds := []unix.PollFd{{Fd: int32(l.mountinfo.Fd()), Events: unix.POLLPRI}}
	n, err := unix.Poll(fds, 0)
	return n > 0 || err != nil
}

func (l *NetNSList) readMounts() (map[int]netNSMount, error) {
	if _, err := l.mountinfo.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	found, err := mountinfo.GetMountsFromReader(l.mountinfo, mountinfo.FSTypeFilter("nsfs"))
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: read mounts: %w", err)
	}
	mounts := make(map[int]netNSMount, len(found))
	for _, m := range found {
		if inode, ok := netNSInode(m.Root); ok {
			mounts[m.ID] = netNSMount{inode, m.Mountpoint}
		}
	}
	return mounts, nil
}

// readProcs reads the processes that the last poll did not know or that had not settled;
// all of them on a rescan.
func (l *NetNSList) readProcs(rescan bool) (map[int]netNSProc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	self := os.Getpid()
	own, err := readNetNS(netns.Own)
	if err != nil {
		return nil, err
	}
	l.young = 0
	procs := make(map[int]netNSProc, len(l.procs))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		before, known := l.procs[pid]
		if known && before.settled && !rescan {
			procs[pid] = before
			continue
		}
		inode, err := readNetNS("/proc/" + name + "/ns/net")
		if err != nil {
			continue // exiting, or access denied
		}
		p := netNSProc{inode, known && before.inode == inode}
		if !p.settled {
			l.young++
		}
		procs[pid] = p
	}
	procs[self] = netNSProc{own, true}
	return procs, nil
}

// build merges processes and mounts. It prefers the path of a bind mount, above all one
// in netns.Dir, to that of a process; of processes it takes the lowest id.
func (l *NetNSList) build(mounts map[int]netNSMount, procs map[int]netNSProc) []NetNS {
	found := make(map[uint64]NetNS)
	for _, pid := range slices.Sorted(maps.Keys(procs)) {
		inode := procs[pid].inode
		if _, ok := found[inode]; !ok {
			found[inode] = NetNS{Inode: inode, Path: fmt.Sprintf("/proc/%d/ns/net", pid)}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(mounts)) {
		m := mounts[id]
		if had := found[m.inode]; had.Name == "" || filepath.Dir(had.Path) != netns.Dir {
			found[m.inode] = NetNS{Inode: m.inode, Name: filepath.Base(m.point), Path: m.point}
		}
	}
	own := found[procs[os.Getpid()].inode]
	own.Path, own.Own = netns.Own, true
	found[own.Inode] = own
	cookies := l.knownCookies(mounts, procs)
	list := make([]NetNS, 0, len(found))
	for _, ns := range found {
		var ok bool
		if ns.Cookie, ok = cookies[ns.Inode]; !ok {
			var err error
			if ns.Cookie, err = netns.Cookie(ns.Path); err != nil {
				continue // gone meanwhile
			}
		}
		list = append(list, ns)
	}
	slices.SortFunc(list, func(a, b NetNS) int { return cmp.Compare(a.Cookie, b.Cookie) })
	return list
}

// knownCookies are the cookies, by inode, of namespaces with a process or mount that was there
// at the last poll and still is. Of other namespaces the inode number may have been reused.
func (l *NetNSList) knownCookies(mounts map[int]netNSMount, procs map[int]netNSProc) map[uint64]uint64 {
	lasted := make(map[uint64]bool)
	for id, m := range mounts {
		if l.mounts[id] == m {
			lasted[m.inode] = true
		}
	}
	for pid, p := range procs {
		if before, ok := l.procs[pid]; ok && before.inode == p.inode {
			lasted[p.inode] = true
		}
	}
	cookies := make(map[uint64]uint64, len(l.list))
	for _, ns := range l.list {
		if lasted[ns.Inode] {
			cookies[ns.Inode] = ns.Cookie
		}
	}
	return cookies
}
