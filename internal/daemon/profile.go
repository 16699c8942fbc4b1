package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// profile sets the sysctls that the configuration names (host.sysctls) in network namespaces, and restores
// them at the end. In the daemon's own namespace the configuration decides; in another one, a value that new
// namespaces do not have is its owner's, and stays (design note 8). A sysctl that somebody else changes while
// tcpilot runs is left alone.
type profile struct {
	log     *slog.Logger
	sysctls *sysctls
	journal journal[given]
	want    config.HostSysctls
	names   []string // of want
	all     bool     // namespaces, not only the daemon's own
	routes  *routeProfile

	// Used by the task, and before and after it runs.
	netNSList *host.NetNSList
	listed    func() (list []host.NetNS, changed bool, err error) // netNSList.Poll
	fresh     map[string]string                                   // what new namespaces have, if all
	polls     int

	mu       sync.Mutex // of what follows
	list     []host.NetNS
	given    map[sysctlIn]given
	left     map[sysctlIn]bool // left alone: they had the value before, or someone else has chosen
	due      bool              // all namespaces are to be visited
	problem  string
	leftOver string // why those of an earlier tcpilot could not be taken back
}

// given is a sysctl that has its value from the profile.
type given struct {
	NetNS    uint64 `json:"netns"` // cookie
	Name     string `json:"name"`
	Original string `json:"original"`
	Value    string `json:"value"`
	At       int64  `json:"at_ns"` // Unix nanoseconds
}

// sysctlIn is a sysctl of a network namespace.
type sysctlIn struct {
	netns uint64
	name  string
}

func (g *given) where() sysctlIn { return sysctlIn{g.NetNS, g.Name} }

// openProfile takes back what an earlier process left, and gives the profile for the first time.
func (d *Daemon) openProfile(cfg *config.Config, u *undo.Stack) error {
	p, err := newProfile(cfg, d.sysctls, d.log)
	if err != nil {
		return err
	}
	u.Push("close list of network namespaces", p.netNSList.Close)
	d.profile = p
	if hasProfile(cfg) {
		if _, err := p.adoptAndRestore(); err != nil {
			p.leftOver = fmt.Sprintf("what an earlier tcpilot's host profile has set cannot be taken back: %v", err)
			d.log.Warn(p.leftOver)
		}
	}
	if !p.wanted() {
		return nil
	}
	if p.all {
		if p.fresh, err = host.NewNetNSSysctls(p.names); err != nil {
			return fmt.Errorf("read the sysctls of a new network namespace: %w", err)
		}
	}
	u.Push("restore sysctls and routes", func() error {
		if d.keep() {
			return nil
		}
		_, err := p.restore()
		return err
	})
	p.poll(time.Now(), cfg.Mode == engine.ModeObserve)
	return nil
}

func newProfile(cfg *config.Config, s *sysctls, log *slog.Logger) (*profile, error) {
	namespaces, err := host.NewNetNSList()
	if err != nil {
		return nil, err
	}
	return &profile{log: log, sysctls: s, netNSList: namespaces, listed: namespaces.Poll, journal: profileJournal(cfg),
		want: cfg.Host.Sysctls, names: cfg.Host.Sysctls.Names(), all: cfg.Host.NetNS == "all", routes: newRouteProfile(cfg, log),
		given: map[sysctlIn]given{}, left: map[sysctlIn]bool{}, due: true}, nil
}

// hasProfile reports whether an earlier process may have left sysctls or routes changed.
func hasProfile(cfg *config.Config) bool {
	return profileJournal(cfg).exists() || routeJournal(cfg).exists()
}

// profileJournal has the sysctls of the profile that are in force.
func profileJournal(cfg *config.Config) journal[given] {
	return journalOf[given](cfg, "host-profile.json", "the host profile")
}

// restoreProfile takes back what a daemon that no longer runs gave, and returns what that was.
func restoreProfile(cfg *config.Config) (undone []string, err error) {
	if !hasProfile(cfg) {
		return nil, nil
	}
	s, err := newSysctls(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	p, err := newProfile(cfg, s, s.log)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	defer func() { err = errors.Join(err, p.netNSList.Close(), s.close()) }()
	return p.adoptAndRestore()
}

func (p *profile) wanted() bool { return len(p.want)+len(p.routes.within) > 0 }

// holdProfile is the task that gives the profile to new namespaces, and notices what someone else changes.
func (d *Daemon) holdProfile(ctx context.Context) error {
	return every(ctx, watchInterval, func() error {
		d.profile.poll(time.Now(), d.cfg.Load().Mode == engine.ModeObserve)
		return nil
	})
}

// poll visits namespaces that are new, and all of them once a minute.
func (p *profile) poll(now time.Time, observe bool) {
	if observe { // after a reload, what was given is taken back
		problem := ""
		if _, err := p.restore(); err != nil {
			problem = fmt.Sprintf("host: %v", err)
		}
		p.setProblem(problem)
		return
	}
	list, changed, err := p.listed()
	if err != nil {
		p.log.Debug("network namespaces not listed", "error", err)
		return
	}
	p.mu.Lock()
	p.list = slices.Clone(list)
	p.mu.Unlock()
	if changed {
		p.forgetGone()
	}
	due := p.takeDue()
	if p.polls++; !changed && !due && p.polls%lookAgain != 0 {
		return
	}
	problem := ""
	note := func(key string, ns host.NetNS, err error) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // else the namespace has gone meanwhile
			problem = fmt.Sprintf("host.%s in network namespace %s: %v", key, cmp.Or(p.nameOf(ns.Cookie), "own"), err)
		}
	}
	var wanting []sysctlChange
	var wantingRoutes []routeChange
	for _, ns := range list {
		if ns.Cookie != p.sysctls.own && !p.all {
			continue
		}
		changes, err := p.look(ns, now)
		note("sysctls", ns, err)
		wanting = append(wanting, changes...)
		routes, err := p.routes.look(ns, p.nameOf(ns.Cookie), now)
		note("usec_timestamps", ns, err)
		wantingRoutes = append(wantingRoutes, routes...)
	}
	if err := p.give(wanting, func(ns host.NetNS, err error) { note("sysctls", ns, err) }); err != nil {
		problem = fmt.Sprintf("host.sysctls: %v", err)
	}
	if err := p.routes.give(wantingRoutes, func(ns host.NetNS, err error) { note("usec_timestamps", ns, err) }); err != nil {
		problem = fmt.Sprintf("host.usec_timestamps: %v", err)
	}
	p.setProblem(problem)
}

// sysctlChange is a value that a namespace is to get.
type sysctlChange struct {
	ns host.NetNS
	given
}

// look returns what a namespace does not have yet.
func (p *profile) look(ns host.NetNS, now time.Time) (changes []sysctlChange, err error) {
	values, err := ns.ReadSysctls(p.names)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range p.names {
		value, has := values[name]
		at := sysctlIn{ns.Cookie, name}
		g, given := p.givenAt(at)
		switch {
		case !has:
			errs = append(errs, fmt.Errorf("the kernel has no %s", name))
		case p.isLeft(at):
		case given:
			if value != g.Value {
				p.log.Info("a sysctl of the host profile was changed by an administrator, left alone from now on", "netns", p.nameOf(ns.Cookie), "sysctl", name, "value", value)
				p.leave(at)
			}
		case value == p.want[name], ns.Cookie != p.sysctls.own && value != p.fresh[name]:
			p.leave(at)
		default:
			changes = append(changes, newSysctlChange(ns, name, value, p.want[name], now))
		}
	}
	return changes, errors.Join(errs...)
}

func newSysctlChange(ns host.NetNS, name, original, value string, now time.Time) sysctlChange {
	return sysctlChange{ns, given{NetNS: ns.Cookie, Name: name, Original: original, Value: value, At: now.UnixNano()}}
}

// give writes values, and calls failed for namespaces in which that fails. The journal is written before, because
// the daemon may crash in between: once for all values, because it is one file, and there may be thousands of
// namespaces.
func (p *profile) give(changes []sysctlChange, failed func(host.NetNS, error)) error {
	if len(changes) == 0 {
		return nil
	}
	noted := p.allGiven()
	for _, g := range changes {
		noted = append(noted, g.given)
	}
	if err := p.journal.write(noted); err != nil {
		return err
	}
	for _, g := range changes {
		if err := p.write(g.ns, g.Name, g.Original, g.Value); err != nil {
			failed(g.ns, err)
			continue
		}
		p.mu.Lock()
		p.given[g.where()] = g.given
		p.mu.Unlock()
		p.log.Info("sysctl set by the host profile", "netns", p.nameOf(g.NetNS), "sysctl", g.Name, "before", g.Original, "value", g.Value)
	}
	if now := p.allGiven(); len(now) < len(noted) {
		p.save(now)
	}
	return nil
}

// write writes a sysctl of a namespace if its value is `from`.
func (p *profile) write(ns host.NetNS, name, from, to string) error {
	return p.sysctls.write(ns.Cookie, name, func() (string, error) {
		return to, ns.In(func() error {
			now, err := sysctl.Read(name)
			if err != nil {
				return err
			}
			if now != from {
				return fmt.Errorf("%w: it is %q", errLimitChanged, now)
			}
			return sysctl.Write(name, to)
		})
	})
}

// leave leaves a sysctl to whoever has set it.
func (p *profile) leave(at sysctlIn) {
	p.mu.Lock()
	p.left[at] = true
	_, changed := p.given[at]
	delete(p.given, at)
	p.mu.Unlock()
	if changed {
		p.save(p.allGiven())
	}
}

// forgetGone forgets namespaces that do not exist.
func (p *profile) forgetGone() {
	p.mu.Lock()
	list := p.list
	gone := func(cookie uint64) bool { _, ok := netNSByCookie(list, cookie); return !ok }
	n := len(p.given)
	maps.DeleteFunc(p.given, func(at sysctlIn, _ given) bool { return gone(at.netns) })
	maps.DeleteFunc(p.left, func(at sysctlIn, _ bool) bool { return gone(at.netns) })
	changed := len(p.given) != n
	p.mu.Unlock()
	if changed {
		p.save(p.allGiven())
	}
	p.routes.forget(gone)
}

func (p *profile) save(list []given) {
	if err := p.journal.write(list); err != nil {
		p.log.Warn("sysctls of the host profile not written to the journal: after a crash they would not be taken back", "error", err)
	}
}

// adoptAndRestore takes back what the journals have, and says what that was.
func (p *profile) adoptAndRestore() (undone []string, err error) {
	list, err := p.journal.read()
	if err != nil {
		p.log.Warn("sysctls of an earlier tcpilot's host profile are not known", "error", err)
		err = p.journal.setAside()
	}
	for _, g := range list {
		p.given[g.where()] = g
	}
	err = errors.Join(err, p.routes.adopt())
	undone, failed := p.restore()
	return undone, errors.Join(err, failed)
}

// restore restores the original values and routes, except those that someone else has changed, and says what it has
// restored. What fails stays in the journals.
func (p *profile) restore() (undone []string, err error) {
	p.mu.Lock()
	p.due = true
	p.mu.Unlock()
	if len(p.allGiven()) == 0 && len(p.routes.state()) == 0 {
		return nil, nil
	}
	p.netNSList.Rescan() // an old list has the path of a process that may have left its namespace since
	list, _, err := p.listed()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.list = slices.Clone(list)
	p.mu.Unlock()
	written, err := p.restoreSysctls(list)
	for _, g := range written {
		undone = append(undone, fmt.Sprintf("%s in network namespace %s, from %s back to %s", g.Name, cmp.Or(p.nameOf(g.NetNS), "own"), g.Value, g.Original))
	}
	restored, errRoutes := p.routes.restore(list)
	for _, c := range restored {
		undone = append(undone, fmt.Sprintf("timestamps in microseconds of the route to %v in network namespace %s", c.Original, cmp.Or(p.nameOf(c.NetNS), "own")))
	}
	return undone, errors.Join(err, errRoutes)
}

func (p *profile) restoreSysctls(list []host.NetNS) (written []given, err error) {
	var errs []error
	var stay []given
	for _, g := range p.allGiven() {
		ns, ok := netNSByCookie(list, g.NetNS)
		if !ok {
			continue
		}
		err := p.write(ns, g.Name, g.Value, g.Original)
		switch {
		case err == nil:
			written = append(written, g)
		case errors.Is(err, fs.ErrNotExist): // gone since it was listed: if not, the journal has it
			stay = append(stay, g)
		case !errors.Is(err, errLimitChanged):
			stay = append(stay, g)
			errs = append(errs, fmt.Errorf("network namespace %s: %w", netNSName(ns), err))
		}
	}
	p.mu.Lock()
	clear(p.given)
	for _, g := range stay {
		p.given[g.where()] = g
	}
	p.mu.Unlock()
	return written, errors.Join(append(errs, p.journal.write(stay))...)
}

// release lets the profile set sysctls again that were left to the administrator, because the configuration
// was read again.
func (p *profile) release() {
	p.routes.release()
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.left)
	p.due = true
}

func (p *profile) takeDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.due
	p.due = false
	return due
}

// givenAt is what the profile gave to a sysctl; by an earlier configuration, if that could not be taken back.
func (p *profile) givenAt(at sysctlIn) (given, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, ok := p.given[at]
	return g, ok
}

// allGiven lists what was given, in the order in which it was.
func (p *profile) allGiven() []given {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.given), func(a, b given) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.NetNS, b.NetNS), cmp.Compare(a.Name, b.Name))
	})
}

func (p *profile) isLeft(at sysctlIn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left[at]
}

func (p *profile) setProblem(problem string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if problem != p.problem && problem != "" {
		p.log.Warn(problem)
	}
	p.problem = problem
}

// nameOf names a namespace; empty is the daemon's own.
func (p *profile) nameOf(cookie uint64) string {
	if cookie == p.sysctls.own {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if ns, ok := netNSByCookie(p.list, cookie); ok {
		return netNSName(ns)
	}
	return fmt.Sprint(cookie)
}

// routeState is what status shows of routes.
func (p *profile) routeState() (list []api.HostRoutes) {
	state := p.routes.state()
	for _, cookie := range slices.Sorted(maps.Keys(state)) {
		h := state[cookie]
		h.NetNS = p.nameOf(cookie)
		list = append(list, *h)
	}
	return list
}

// state is what status shows of sysctls.
func (p *profile) state() (list []api.HostSysctl) {
	for _, g := range p.allGiven() {
		list = append(list, api.HostSysctl{NetNS: p.nameOf(g.NetNS), Sysctl: g.Name, Original: g.Original, Value: g.Value, Since: time.Unix(0, g.At)})
	}
	return list
}

// counts is what metrics show; nil if the profile names and has changed nothing.
func (p *profile) counts() *metrics.HostCount {
	n := metrics.HostCount{Sysctls: len(p.allGiven())}
	n.Routes, n.RoutesLeft = p.routes.counts()
	if len(p.names) == 0 && len(p.routes.within) == 0 && n == (metrics.HostCount{}) {
		return nil
	}
	return &n
}

func (p *profile) problems() (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range []string{p.problem, p.leftOver} {
		if text != "" {
			list = append(list, text)
		}
	}
	return list
}
