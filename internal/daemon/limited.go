package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/limit"
)

// limitSearch is how often connections under limits are searched for in all network namespaces, unless that takes more than
// limitBudget.
const limitSearch = 5 * time.Second

// limitedConns lists the connections under limits. Where that must be done in each network namespace, it takes 2 ms in each (a hash
// table of 262,144 connections is walked). So only those are visited that have a limit of their own, or had connections under limits
// when all were last searched. A connection that is not found yet is under its limit all the same, as one that has just begun.
type limitedConns struct {
	d     *Daemon
	netns *host.NetNSList
	// By the cookies of namespaces, of the last search: those in which there were some, and those that cannot be listed.
	found, failed map[uint64]bool
	next          time.Time // when all namespaces are searched
}

// search finds the network namespaces in which connections are under limits, if that was long ago. It is apart from list, because that
// is compared with what is counted at the same moment.
func (l *limitedConns) search() {
	if l.d.dp.ListsAllLimited() || time.Now().Before(l.next) {
		return
	}
	used := cpuTime()
	namespaces, _, err := l.netns.Poll()
	if err != nil {
		l.d.log.Debug("connections under rate limits not searched for", "error", err)
		return
	}
	l.found, l.failed = map[uint64]bool{}, map[uint64]bool{}
	for _, ns := range namespaces {
		switch conns, err := l.in(ns); {
		case err != nil:
			l.failed[ns.Cookie] = true
			l.d.log.Debug("cannot list the connections under rate limits of a network namespace", "netns", ns.Path, "error", err)
		case len(conns) > 0:
			l.found[ns.Cookie] = true
		}
	}
	l.next = time.Now().Add(max(limitSearch, (cpuTime()-used)*limitBudget))
}

// list lists them. After an error, they are searched for again.
func (l *limitedConns) list(limits map[uint64]limit.Limit) (all []limit.Conn, err error) {
	if l.d.dp.ListsAllLimited() {
		return l.d.dp.Limited()
	}
	namespaces, _, err := l.netns.Poll()
	if err != nil {
		return nil, err
	}
	for _, ns := range namespaces {
		if _, own := limits[ns.Cookie]; l.failed[ns.Cookie] || !own && !l.found[ns.Cookie] {
			continue
		}
		conns, err := l.in(ns)
		if err != nil {
			l.next = time.Time{}
			return nil, fmt.Errorf("network namespace %s: %w", ns.Path, err)
		}
		all = append(all, conns...)
	}
	return all, nil
}

// in lists those of a namespace; none if it is gone.
func (l *limitedConns) in(ns host.NetNS) (conns []limit.Conn, err error) {
	err = inNetNS(ns, func() (err error) {
		conns, err = l.d.dp.Limited()
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return conns, err
}
