package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// sysctls watches, in every network namespace, the sysctls that are the kernel's defaults of
// what tcpilot sets. In the daemon's own namespace, a field is yielded if its sysctl is
// changed while tcpilot runs. In another namespace, a value that new namespaces do not
// have counts as its owner's (design note 8).
type sysctls struct {
	log      *slog.Logger
	own      uint64 // cookie of the daemon's network namespace
	watch    *host.SysctlWatch
	defaults map[string]engine.Default

	mu sync.Mutex
	// inherited are the values that new namespaces have, the latest last.
	inherited map[string][]string
	netNSList *host.NetNSList
	turns     turns
	names     []string // sysctls that were read last time
	owned     map[uint64][]engine.Yield
	changed   map[string]bool              // in the daemon's own namespace, while it runs
	ours      map[uint64]map[string]string // values that tcpilot wrote into other namespaces, by sysctl
	before    map[string]string            // see inheritedBefore
}

func newSysctls(log *slog.Logger) (*sysctls, error) {
	s := &sysctls{log: log, defaults: map[string]engine.Default{kernelcc.DefaultKey: {CC: true}}, inherited: map[string][]string{},
		changed: map[string]bool{}, ours: map[uint64]map[string]string{}, before: map[string]string{}}
	names := []string{kernelcc.DefaultKey}
	for f := range tcp.NumFields {
		if name := tcp.Fields[f].Sysctl; name != "" {
			names = append(names, name)
			s.defaults[name] = engine.Default{Field: f}
		}
	}
	var err error
	if s.own, err = netns.Cookie(""); err != nil {
		return nil, err
	}
	s.watch = host.NewSysctlWatch(sysctl.Root, names)
	if s.netNSList, err = host.NewNetNSList(); err != nil {
		return nil, err
	}
	s.refresh()
	return s, nil
}

func (s *sysctls) close() error { return s.netNSList.Close() }

// refresh adds the current values of a new namespace, and of the daemon's own, to the
// inherited ones.
func (s *sysctls) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if values, err := host.ReadSysctls("", s.watch.Names()); err == nil {
		s.inherit(values)
	}
	s.inheritNew()
	clear(s.changed)
}

func (s *sysctls) inheritNew() {
	values, err := host.NewNetNSSysctls(s.watch.Names())
	if err != nil {
		s.log.Warn("cannot read the sysctls of a new network namespace, using those of this one", "error", err)
		return
	}
	s.inherit(values)
}

// inherit keeps the latest values of each sysctl.
func (s *sysctls) inherit(values map[string]string) {
	for name, v := range values {
		list := slices.DeleteFunc(s.inherited[name], func(old string) bool { return old == v })
		list = append(list, v)
		s.inherited[name] = list[max(0, len(list)-datapath.MaxInherited):]
	}
}

// ccs are the inherited default congestion controls.
func (s *sysctls) ccs() []tcp.CC {
	s.mu.Lock()
	defer s.mu.Unlock()
	return parseCCs(s.inherited[kernelcc.DefaultKey])
}

// poll yields the fields whose sysctls were changed since the last call, and reports whether
// the yields changed.
func (s *sysctls) poll(e *engine.Engine) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.watch.Poll() {
		s.changed[c.Name] = true
		y := engine.Yield{Sysctl: c.Name, Before: c.Before, After: c.After, Since: time.Now()}
		if e.SetYield(y, s.defaults[c.Name]) {
			changed = true
		}
	}
	return s.pollNetNS(e) || changed
}

// Namespaces are visited in turn, because a visit costs 0.12 ms of a CPU
// (go test ./internal/host -bench ReadSysctls, as root; AMD EPYC).
const (
	// lookAgain is the number of polls in which each namespace is visited at least once: a minute.
	lookAgain = 12
	// lookBudget is the CPU time that visits at one poll may take beyond that, if rules set fields: 1/500
	// of a CPU. With fewer than about 80 namespaces, each is visited at each poll, also on a busy host.
	lookBudget = watchInterval / 500
)

// turns chooses the namespaces to visit at a poll.
type turns struct {
	next uint64 // cookie of the first one that was not visited last time
}

// visit calls look for namespaces in turn, from next on: for at least 1/lookAgain of them, for more as
// long as more returns true, and for each that must be visited. namespaces are sorted by cookie.
func (t *turns) visit(namespaces []host.NetNS, must func(host.NetNS) bool, more func() bool, look func(host.NetNS)) {
	first, _ := slices.BinarySearchFunc(namespaces, t.next, func(ns host.NetNS, cookie uint64) int { return cmp.Compare(ns.Cookie, cookie) })
	least, inTurn := (len(namespaces)+lookAgain-1)/lookAgain, true
	for i := range namespaces {
		ns := namespaces[(first+i)%len(namespaces)]
		if inTurn && i >= least && !more() {
			inTurn, t.next = false, ns.Cookie
		}
		if inTurn || must(ns) {
			look(ns)
		}
	}
}

// pollNetNS reads the sysctls of other network namespaces than the daemon's own.
func (s *sysctls) pollNetNS(e *engine.Engine) (changed bool) {
	namespaces, _, err := s.netNSList.Poll()
	if err != nil {
		s.log.Debug("network namespaces not listed", "error", err)
		return false
	}
	namespaces = slices.DeleteFunc(slices.Clone(namespaces), func(ns host.NetNS) bool { return ns.Own })
	names := s.wanted(e)
	all := !slices.Equal(names, s.names)
	s.names = names
	before := s.owned
	s.owned = make(map[uint64][]engine.Yield, len(namespaces))
	for _, ns := range namespaces {
		s.owned[ns.Cookie] = before[ns.Cookie]
	}
	isField := func(name string) bool { return !s.defaults[name].CC }
	fields, start := slices.ContainsFunc(names, isField), cpuTime()
	s.turns.visit(namespaces, func(ns host.NetNS) bool {
		_, known := before[ns.Cookie]
		return all || !known
	}, func() bool { return fields && cpuTime()-start < lookBudget }, func(ns host.NetNS) {
		was := before[ns.Cookie]
		now, err := s.look(ns, names, was)
		switch {
		case err == nil:
			s.owned[ns.Cookie] = now
			changed = changed || !slices.EqualFunc(was, now, sameYield)
		case !errors.Is(err, os.ErrNotExist):
			s.log.Debug("cannot read the sysctls of a network namespace", "netns", ns.Path, "error", err)
		}
	})
	maps.DeleteFunc(s.ours, func(cookie uint64, _ map[string]string) bool {
		_, here := s.owned[cookie]
		_, known := before[cookie] // a cookie that is not known yet comes from another list of namespaces
		return known && !here
	})
	for cookie, was := range before {
		if _, here := s.owned[cookie]; !here && len(was) > 0 {
			changed = true
		}
	}
	return changed
}

func sameYield(a, b engine.Yield) bool { return a.Sysctl == b.Sysctl && a.After == b.After }

// wanted are the sysctls of the fields that some rule sets or adapts.
func (s *sysctls) wanted(e *engine.Engine) (names []string) {
	set, adapted := e.Fields()
	for _, name := range s.watch.Names() {
		if d := s.defaults[name]; d.CC || (set|adapted)&(1<<d.Field) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// look returns the fields that the owner of a namespace has set.
func (s *sysctls) look(ns host.NetNS, names []string, was []engine.Yield) (owned []engine.Yield, err error) {
	values, err := ns.ReadSysctls(names)
	if err != nil {
		return nil, err
	}
	if s.anyOwned(ns.Cookie, names, values) {
		s.inheritNew() // the values of new namespaces may have changed
	}
	for _, name := range names {
		value, has := values[name]
		list := s.inherited[name]
		if !has || !s.foreign(ns.Cookie, name, value) {
			continue
		}
		y := engine.Yield{NetNS: netNSName(ns), Sysctl: name, Field: s.defaults[name].String(), After: value, Since: time.Now()}
		if len(list) > 0 {
			y.Before = list[len(list)-1]
		}
		if i := slices.IndexFunc(was, func(w engine.Yield) bool { return sameYield(w, y) }); i >= 0 {
			y = was[i]
		} else {
			s.log.Info("a network namespace has a setting of its own: left alone there", "netns", y.NetNS,
				"field", y.Field, "sysctl", name, "inherited", y.Before, "value", value)
		}
		owned = append(owned, y)
	}
	return owned, nil
}

func (s *sysctls) anyOwned(netns uint64, names []string, values map[string]string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		value, has := values[name]
		return has && s.foreign(netns, name, value)
	})
}

// write calls f, which writes a sysctl of a network namespace and returns the value. Nothing else
// looks at sysctls meanwhile, so that the value does not count as a change by an administrator.
func (s *sysctls) write(netns uint64, name string, f func() (value string, err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, err := f()
	if err == nil {
		s.note(netns, name, value)
	}
	return err
}

// wrote notes a value that an earlier tcpilot wrote.
func (s *sysctls) wrote(netns uint64, name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(netns, name, value)
}

func (s *sysctls) note(netns uint64, name, value string) {
	if netns == s.own {
		s.watch.Expect(name, value)
		return
	}
	if s.ours[netns] == nil {
		s.ours[netns] = map[string]string{}
	}
	s.ours[netns][name] = value
}

// inheritedBefore notes a value that new namespaces had before tcpilot wrote another one into the
// initial namespace: namespaces from that time have it, and did not choose it.
func (s *sysctls) inheritedBefore(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before[name] = value
}

// ownerChose reports whether a value is one that the owner of a network namespace chose: in
// the daemon's own, by a change while it runs; in another one, because new namespaces do not
// have it.
func (s *sysctls) ownerChose(netns uint64, name, value string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if netns == s.own {
		return s.changed[name]
	}
	return s.foreign(netns, name, value)
}

// foreign reports whether a value of another namespace is neither inherited nor tcpilot's.
func (s *sysctls) foreign(netns uint64, name, value string) bool {
	return s.ours[netns][name] != value && s.before[name] != value && !slices.Contains(s.inherited[name], value)
}

func netNSName(ns host.NetNS) string {
	if ns.Name != "" {
		return ns.Name
	}
	return fmt.Sprintf("%d", ns.Cookie)
}

// yields are the yields of all namespaces except the daemon's own, sorted.
func (s *sysctls) yields() (list []engine.Yield) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ys := range s.owned {
		list = append(list, ys...)
	}
	slices.SortFunc(list, func(a, b engine.Yield) int {
		return slices.Compare([]string{a.NetNS, a.Sysctl}, []string{b.NetNS, b.Sysctl})
	})
	return list
}

// ownedBy returns what a network namespace owns: the congestion control, and fields by bit.
func (s *sysctls) ownedBy(e *engine.Engine, netns uint64) (cc bool, fields uint64) {
	if netns == s.own {
		return e.Yields()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, y := range s.owned[netns] {
		if d := s.defaults[y.Sysctl]; d.CC {
			cc = true
		} else {
			fields |= 1 << d.Field
		}
	}
	return cc, fields
}

// masks are the fields that namespaces own, for the datapath. The congestion control is not
// part of them, because the programs read a namespace's default themselves.
func (s *sysctls) masks() (list []datapath.Yield) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for cookie, ys := range s.owned {
		m := datapath.Yield{NetNS: cookie}
		for _, y := range ys {
			if d := s.defaults[y.Sysctl]; !d.CC {
				m.Fields |= 1 << d.Field
			}
		}
		list = append(list, m)
	}
	return list
}
