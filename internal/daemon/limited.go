package daemon

import (
	"errors"
	"io/fs"
	"time"

	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/limit"
)

// limitSearch is how often connections under limits are searched for in all network namespaces.
const limitSearch = 5 * time.Second

// limitedConns lists the connections under limits.
type limitedConns struct {
	d        *Daemon
	netns    *host.NetNSList
	found    map[uint64]bool // the cookies of the namespaces in which there were some
	searched time.Time       // when all namespaces were last searched
}

// list lists them. Where that must be done in each network namespace, it takes 2 ms in each (a hash table of
// 262,144 connections is walked). So in between two searches, only those are searched that have a limit of their own, or had connections
// under limits. A connection that is not found yet is under its limit all the same, as one that has just begun.
func (l *limitedConns) list(limits map[uint64]limit.Limit) (conns []limit.Conn, err error) {
	if l.d.dp.ListsAllLimited() {
		return l.d.dp.Limited()
	}
	namespaces, _, err := l.netns.Poll()
	if err != nil {
		return nil, err
	}
	all := time.Since(l.searched) >= limitSearch
	if all {
		l.searched = time.Now()
	}
	found := map[uint64]bool{}
	for _, ns := range namespaces {
		if _, own := limits[ns.Cookie]; !all && !own && !l.found[ns.Cookie] {
			continue
		}
		err := inNetNS(ns, func() error {
			here, err := l.d.dp.Limited()
			conns = append(conns, here...)
			if len(here) > 0 {
				found[ns.Cookie] = true
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.d.log.Debug("cannot list the connections under rate limits of a network namespace", "netns", ns.Path, "error", err)
		}
	}
	l.found = found
	return conns, nil
}
