package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/routes"
)

// routeProfile is the part of the host profile that concerns routes: by those within some prefixes, connections use
// timestamps in microseconds (host.usec_timestamps). What it changes is taken back at the end, except routes that
// somebody else has changed meanwhile.
type routeProfile struct {
	log         *slog.Logger
	journal     journal[changedRoute]
	within      []netip.Prefix
	unsupported error // why there can be no such routes

	mu       sync.Mutex // of what follows
	changed  map[routeIn]changedRoute
	left     map[routeIn]leftRoute
	replaced map[routeIn]replacements // of changed routes by somebody else, since the configuration was read
}

// changedRoute is a route that the profile has changed.
type changedRoute struct {
	NetNS    uint64       `json:"netns"` // cookie
	Original routes.Route `json:"original"`
	At       int64        `json:"at_ns"` // Unix nanoseconds
}

// leftRoute is a route within the prefixes that stays as it is.
type leftRoute struct{ name, why string }

// routeIn is a route of a network namespace.
type routeIn struct {
	netns uint64 // cookie
	key   string
}

// replacements are how often a route was replaced, each time within replacedWithin of the time before.
type replacements struct {
	n      int
	latest time.Time
}

func (c *changedRoute) where() routeIn { return routeIn{c.NetNS, c.Original.Key()} }

const (
	// maxChangedRoutes bounds the journal.
	maxChangedRoutes = 10_000
	// maxReplaced is how often a route is changed again after somebody else has replaced it, if each time is within
	// replacedWithin of the one before: a DHCP client may do that from time to time, and a routing daemon whenever it
	// finds that a route is not as it has made it.
	maxReplaced    = 3
	replacedWithin = time.Hour
)

func newRouteProfile(cfg *config.Config, log *slog.Logger) *routeProfile {
	p := &routeProfile{log: log, journal: routeJournal(cfg), within: cfg.Host.UsecTimestamps,
		changed: map[routeIn]changedRoute{}, left: map[routeIn]leftRoute{}, replaced: map[routeIn]replacements{}}
	if len(p.within) == 0 {
		return p
	}
	switch err := netns.InNew(routes.SupportsUsecTS); {
	case errors.Is(err, fs.ErrPermission):
		p.unsupported = fmt.Errorf("routes cannot be changed: %w", err)
	case err != nil:
		p.unsupported = fmt.Errorf("the kernel has no routes with features tcp_usec_ts, which Linux 6.7 and later have: %w", err)
	}
	return p
}

// routeJournal has the changed routes.
func routeJournal(cfg *config.Config) journal[changedRoute] {
	return journalOf[changedRoute](cfg, "host-routes.json", "changed routes")
}

// isWanted reports whether a route to these addresses is to be changed.
func (p *routeProfile) isWanted(destination netip.Prefix) bool {
	return slices.ContainsFunc(p.within, func(w netip.Prefix) bool {
		return w.Bits() <= destination.Bits() && w.Contains(destination.Addr())
	})
}

// routeChange is a route of a network namespace that is to be changed.
type routeChange struct {
	ns   host.NetNS
	name string // of the namespace; empty for the daemon's own
	changedRoute
}

// look returns the routes of a network namespace that do not have what they should.
func (p *routeProfile) look(ns host.NetNS, name string, now time.Time) (wanting []routeChange, err error) {
	if len(p.within) == 0 {
		return nil, nil
	}
	if p.unsupported != nil {
		return nil, p.unsupported
	}
	var list []routes.Found
	err = ns.In(func() (err error) {
		list, err = routes.List(p.isWanted)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.compare(ns.Cookie, name, list, now) {
		wanting = append(wanting, routeChange{ns, name, changedRoute{ns.Cookie, r, now.UnixNano()}})
	}
	return wanting, nil
}

// compare compares the routes of a namespace with those that were changed, and returns those that are to be.
func (p *routeProfile) compare(cookie uint64, name string, list []routes.Found, now time.Time) (wanting []routes.Route) {
	maps.DeleteFunc(p.left, func(at routeIn, _ leftRoute) bool { return at.netns == cookie })
	found, inForce := map[routeIn]bool{}, map[routeIn]bool{}
	for _, r := range list {
		at := routeIn{cookie, r.Key()}
		found[at] = true
		if have, ok := p.changed[at]; ok && r.Equal(have.Original.WithUsecTS()) {
			inForce[at] = true
		}
	}
	for _, r := range list {
		at := routeIn{cookie, r.Key()}
		if _, changed := p.changed[at]; changed && !inForce[at] {
			p.log.Info("somebody else has replaced a route that the host profile had changed", "netns", name, "route", r.String())
			delete(p.changed, at)
			p.noteReplaced(at, now)
		}
		switch {
		case r.UsecTS():
		case r.Fixed != "":
			p.left[at] = leftRoute{r.String(), r.Fixed}
		case p.replaced[at].n > maxReplaced:
			p.left[at] = leftRoute{r.String(), "somebody else replaces it again and again"}
		default:
			wanting = append(wanting, r.Route)
		}
	}
	maps.DeleteFunc(p.changed, func(at routeIn, c changedRoute) bool {
		return at.netns == cookie && !found[at] && p.isWanted(c.Original.Destination())
	})
	if name == "" { // the daemon's own
		for _, w := range p.within {
			if !slices.ContainsFunc(list, func(r routes.Found) bool { return w.Overlaps(r.Destination()) }) {
				p.left[routeIn{cookie, w.String()}] = leftRoute{w.String(), "no route leads there alone; that of a shorter prefix stays as it is"}
			}
		}
	}
	return wanting
}

func (p *routeProfile) noteReplaced(at routeIn, now time.Time) {
	r := p.replaced[at]
	if now.Sub(r.latest) > replacedWithin {
		r.n = 0
	}
	p.replaced[at] = replacements{r.n + 1, now}
}

// give changes routes, and calls failed for namespaces in which that fails. The journal is written before, because the daemon
// may crash in between: once for all, because it is one file, and there may be thousands of namespaces.
func (p *routeProfile) give(wanting []routeChange, failed func(host.NetNS, error)) error {
	if len(wanting) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.changed) + len(wanting); n > maxChangedRoutes {
		return fmt.Errorf("%d routes are within the prefixes, more than %d: name narrower ones", n, maxChangedRoutes)
	}
	noted := p.all()
	for _, c := range wanting {
		noted = append(noted, c.changedRoute)
	}
	if err := p.journal.write(noted); err != nil {
		return err
	}
	for len(wanting) > 0 {
		ns := wanting[0].ns
		n := slices.IndexFunc(wanting, func(c routeChange) bool { return c.ns != ns })
		if n < 0 {
			n = len(wanting)
		}
		if err := ns.In(func() error { return p.change(wanting[:n]) }); err != nil {
			failed(ns, err)
		}
		wanting = wanting[n:]
	}
	return nil
}

// change changes routes of the calling thread's network namespace.
func (p *routeProfile) change(wanting []routeChange) error {
	var errs []error
	for _, c := range wanting {
		err := routes.Replace(c.Original.WithUsecTS())
		switch {
		case err == nil:
			p.changed[c.where()] = c.changedRoute
			p.log.Info("route changed by the host profile: connections use timestamps in microseconds", "netns", c.name, "route", c.Original.String())
		case !errors.Is(err, unix.ENOENT): // else it has gone meanwhile
			p.left[c.where()] = leftRoute{c.Original.String(), err.Error()}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// all lists the changed routes, in the order in which they were.
func (p *routeProfile) all() []changedRoute {
	return slices.SortedFunc(maps.Values(p.changed), func(a, b changedRoute) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.NetNS, b.NetNS), bytes.Compare(a.Original, b.Original))
	})
}

// adopt takes over what the journal has.
func (p *routeProfile) adopt() error {
	list, err := p.journal.read()
	if err != nil {
		p.log.Warn("routes that an earlier tcpilot has changed are not known", "error", err)
		return p.journal.setAside()
	}
	for _, c := range list {
		if !c.Original.IsValid() {
			p.log.Warn("a route that an earlier tcpilot has changed is not known", "error", "the journal is damaged")
			return p.journal.setAside()
		}
		p.changed[c.where()] = c
	}
	return nil
}

// restore restores the original routes in these network namespaces, except those that somebody else has changed, and
// returns what it has restored. Routes for which it fails stay in the journal.
func (p *routeProfile) restore(namespaces []host.NetNS) (restored []changedRoute, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.left)
	if len(p.changed) == 0 {
		return nil, nil
	}
	var errs []error
	kept := map[routeIn]changedRoute{}
	for _, ns := range namespaces {
		mine := map[routeIn]changedRoute{}
		for at, c := range p.changed {
			if at.netns == ns.Cookie {
				mine[at] = c
			}
		}
		if len(mine) == 0 {
			continue
		}
		err := ns.In(func() error {
			done, err := restoreRoutes(mine)
			restored = append(restored, done...)
			return err
		})
		if err != nil {
			maps.Copy(kept, mine)
			if !errors.Is(err, fs.ErrNotExist) { // else gone since it was listed: if not, the journal has it
				errs = append(errs, fmt.Errorf("network namespace %s: %w", netNSName(ns), err))
			}
		}
	}
	p.changed = kept
	return restored, errors.Join(append(errs, p.journal.write(p.all()))...)
}

// restoreRoutes restores routes of the calling thread's network namespace. Those for which it fails stay in the map.
func restoreRoutes(changed map[routeIn]changedRoute) (restored []changedRoute, err error) {
	destinations, byKey := map[netip.Prefix]bool{}, map[string]routeIn{}
	for at, c := range changed {
		destinations[c.Original.Destination()] = true
		byKey[at.key] = at
	}
	list, err := routes.List(func(destination netip.Prefix) bool { return destinations[destination] })
	if err != nil {
		return nil, err
	}
	var errs []error
	seen, kept := map[string]bool{}, map[routeIn]bool{}
	for _, now := range list {
		key := now.Key()
		at, ok := byKey[key]
		isFirst := !seen[key]
		seen[key] = true
		if !ok || !now.Equal(changed[at].Original.WithUsecTS()) {
			continue
		}
		err := replaceFirst(changed[at].Original, isFirst)
		switch {
		case err == nil:
			restored = append(restored, changed[at])
		case !errors.Is(err, unix.ENOENT): // else it has gone meanwhile
			kept[at] = true
			errs = append(errs, err)
		}
	}
	maps.DeleteFunc(changed, func(at routeIn, _ changedRoute) bool { return !kept[at] })
	return restored, errors.Join(errs...)
}

// replaceFirst replaces a route, unless it is not the first one with its key: the kernel would replace another one.
func replaceFirst(r routes.Route, isFirst bool) error {
	if !isFirst {
		return fmt.Errorf("replace route to %v: another one has the same destination, table and metric", r)
	}
	return routes.Replace(r)
}

// release lets the profile change routes again that were left to somebody else, because the configuration was read again.
func (p *routeProfile) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.replaced)
}

// forget forgets network namespaces that are gone.
func (p *routeProfile) forget(gone func(cookie uint64) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.changed)
	maps.DeleteFunc(p.changed, func(at routeIn, _ changedRoute) bool { return gone(at.netns) })
	maps.DeleteFunc(p.left, func(at routeIn, _ leftRoute) bool { return gone(at.netns) })
	maps.DeleteFunc(p.replaced, func(at routeIn, _ replacements) bool { return gone(at.netns) })
	if len(p.changed) == n {
		return
	}
	if err := p.journal.write(p.all()); err != nil {
		p.log.Warn("changed routes not written to the journal", "error", err)
	}
}

// maxShownRoutes bounds what status shows of a network namespace.
const maxShownRoutes = 20

func (p *routeProfile) counts() (changed, left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.changed), len(p.left)
}

// state is what status shows, by the cookies of namespaces.
func (p *routeProfile) state() map[uint64]*api.HostRoutes {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := map[uint64]*api.HostRoutes{}
	in := func(cookie uint64) *api.HostRoutes {
		if state[cookie] == nil {
			state[cookie] = &api.HostRoutes{Routes: []string{}}
		}
		return state[cookie]
	}
	all := slices.SortedFunc(maps.Values(p.changed), func(a, b changedRoute) int {
		return a.Original.Destination().Addr().Compare(b.Original.Destination().Addr())
	})
	for _, c := range all {
		h := in(c.NetNS)
		if h.Count++; len(h.Routes) < maxShownRoutes {
			h.Routes = append(h.Routes, c.Original.String())
		}
	}
	for at, l := range p.left {
		h := in(at.netns)
		h.Left = append(h.Left, l.name+": "+l.why)
	}
	for _, h := range state {
		slices.Sort(h.Left)
		h.Left = h.Left[:min(len(h.Left), maxShownRoutes)]
	}
	return state
}
