package daemon

import (
	"errors"
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
	found map[uint64]bool // the cookies of the namespaces in which there were some
	next  time.Time       // when all namespaces are searched
}

// search finds the network namespaces in which connections are under limits, if that was long ago. It is apart from list, because that
// is compared with what is counted at the same moment.
func (l *limitedConns) search() {
	if l.d.dp.ListsAllLimited() || time.Now().Before(l.next) {
		return
	}
	used := cpuTime()
	l.found = map[uint64]bool{}
	err := l.visit(func(ns host.NetNS) bool { return true }, func(ns host.NetNS, conns []limit.Conn) {
		if len(conns) > 0 {
			l.found[ns.Cookie] = true
		}
	})
	if err != nil {
		l.d.log.Debug("connections under rate limits not found", "error", err)
	}
	l.next = time.Now().Add(max(limitSearch, (cpuTime()-used)*limitBudget))
}

// list lists them.
func (l *limitedConns) list(limits map[uint64]limit.Limit) (all []limit.Conn, err error) {
	if l.d.dp.ListsAllLimited() {
		return l.d.dp.Limited()
	}
	err = l.visit(func(ns host.NetNS) bool {
		_, own := limits[ns.Cookie]
		return own || l.found[ns.Cookie]
	}, func(_ host.NetNS, conns []limit.Conn) { all = append(all, conns...) })
	return all, err
}

func (l *limitedConns) visit(which func(host.NetNS) bool, use func(host.NetNS, []limit.Conn)) error {
	namespaces, _, err := l.netns.Poll()
	if err != nil {
		return err
	}
	for _, ns := range namespaces {
		if !which(ns) {
			continue
		}
		err := inNetNS(ns, func() error {
			conns, err := l.d.dp.Limited()
			use(ns, conns)
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.d.log.Debug("cannot list the connections under rate limits of a network namespace", "netns", ns.Path, "error", err)
		}
	}
	return nil
}
