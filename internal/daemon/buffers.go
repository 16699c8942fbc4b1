package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/buffers"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// bufferLimits raises the buffer limits of network namespaces as package buffers decides, and
// takes the raises back at the end.
type bufferLimits struct {
	log     *slog.Logger
	sysctls *sysctls
	journal bufferJournal

	mu      sync.Mutex
	control *buffers.Controller
	spaces  *host.NetNSList
	raises  [buffers.Both]uint64 // since the start
	backs   [buffers.Both]uint64 // raises that a shortage of memory took back
	problem string               // why nothing can be raised; empty if it can
	initial string               // path of the initial network namespace; empty is not known
}

// openBuffers takes over what an earlier process raised. If the configuration does not want
// raised limits any more, they are taken back at once.
func (d *Daemon) openBuffers(cfg *config.Config, u *undo.Stack) error {
	b, err := newBufferLimits(cfg, d.sysctls, d.log)
	if err != nil {
		return err
	}
	u.Push("close list of network namespaces", b.spaces.Close)
	if err := b.adopt(); err != nil {
		d.log.Warn("raised buffer limits of an earlier tcpilot not taken over", "error", err)
	}
	if !cfg.Buffers.Adapt {
		return b.restore()
	}
	d.buffers = b
	u.Push("restore buffer limits", func() error {
		if d.keep() {
			return nil
		}
		return b.restore()
	})
	return nil
}

func newBufferLimits(cfg *config.Config, s *sysctls, log *slog.Logger) (*bufferLimits, error) {
	spaces, err := host.NewNetNSList()
	if err != nil {
		return nil, err
	}
	return &bufferLimits{log: log, sysctls: s, spaces: spaces, control: buffers.New(cfg.Buffers.Max),
		journal: bufferJournal(filepath.Join(cfg.StateDir, bufferJournalName))}, nil
}

// restoreBuffers takes back what a daemon that no longer runs raised, and returns what that was.
func restoreBuffers(cfg *config.Config) (undone []string, err error) {
	s, err := newSysctls(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	b, err := newBufferLimits(cfg, s, s.log)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	defer func() { err = errors.Join(err, b.spaces.Close(), s.close()) }()
	if err := b.adopt(); err != nil {
		return nil, err
	}
	for _, r := range b.control.Raised() {
		where := ""
		if r.NetNS != s.own {
			where = " in network namespace " + b.nameOf(r.NetNS)
		}
		undone = append(undone, fmt.Sprintf("maximum of %s%s, raised from %d to %d", r.Which.Sysctl(), where, r.Original, r.Limit))
	}
	if err := b.restore(); err != nil {
		return nil, err
	}
	return undone, nil
}

// observe passes a sample on.
func (b *bufferLimits) observe(s *tcp.Sample) {
	if b == nil || !s.Has(tcp.FlagRcvbufMax) && !s.Has(tcp.FlagSndbufMax) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.control.Observe(s)
}

// adaptBuffers is the task that raises limits and takes them back.
func (d *Daemon) adaptBuffers(ctx context.Context) error {
	return every(ctx, watchInterval, func() error {
		d.buffers.poll(time.Now().UnixNano(), d.cfg.Load().Mode == engine.ModeObserve)
		return nil
	})
}

func (b *bufferLimits) poll(now int64, observe bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	spaces, changed, err := b.spaces.Poll()
	if err != nil {
		b.log.Debug("network namespaces not listed", "error", err)
		return
	}
	if changed {
		b.forgetGone(spaces)
		b.adoptInherited(spaces, now)
	}
	wanted := b.control.Wanted()
	if len(wanted) == 0 {
		return
	}
	short, err := b.shortOfMemory(spaces)
	problem := ""
	if err != nil {
		problem = fmt.Sprintf("buffer limits are not raised, because the memory of TCP cannot be watched: %v", err)
		short = true // what cannot be watched is not raised
	}
	if problem != b.problem && problem != "" {
		b.log.Warn(problem)
	}
	b.problem = problem
	changes, left := b.control.Decide(now, b.current(spaces, wanted), short)
	for _, r := range left {
		b.log.Info("a buffer limit was changed by an administrator, left alone from now on", "netns", r.NetNS, "sysctl", r.Which.Sysctl(), "raised_to", r.Limit)
	}
	for _, c := range changes {
		if observe {
			b.log.Info("buffer limit would be raised", changeAttrs(c)...)
			continue
		}
		if err := b.apply(spaces, c, now); err != nil {
			b.log.Warn("buffer limit not changed", append(changeAttrs(c), "error", err)...)
			continue
		}
		if c.To > c.From {
			b.raises[c.Which]++
			b.log.Info("buffer limit raised", changeAttrs(c)...)
		} else {
			b.backs[c.Which]++
			b.log.Info("buffer limit taken back", changeAttrs(c)...)
		}
	}
	if len(left) > 0 {
		b.save()
	}
}

func changeAttrs(c buffers.Change) []any {
	return []any{"netns", c.NetNS, "sysctl", c.Which.Sysctl(), "from_bytes", c.From, "to_bytes", c.To, "why", c.Why}
}

// shortOfMemory reports whether the memory of all TCP sockets is nearer to the kernel's
// pressure threshold, from which it shrinks windows, than to the amount below which it does not
// care (tcp_mem in ip-sysctl.rst).
func (b *bufferLimits) shortOfMemory(spaces []host.NetNS) (bool, error) {
	thresholds, err := b.tcpMem(spaces)
	if err != nil {
		return false, err
	}
	stat, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		return false, err
	}
	return isShort(thresholds, string(stat))
}

// tcpMem reads net.ipv4.tcp_mem, which only the initial network namespace has.
func (b *bufferLimits) tcpMem(spaces []host.NetNS) (value string, err error) {
	read := func() (err error) {
		value, err = sysctl.Read("net.ipv4.tcp_mem")
		return err
	}
	if b.initial != "" && netns.In(b.initial, read) == nil {
		return value, nil
	}
	for _, ns := range spaces {
		if err = netns.In(ns.Path, read); err == nil {
			b.initial = ns.Path
			return value, nil
		}
	}
	return "", fmt.Errorf("net.ipv4.tcp_mem is not visible here: %w", err)
}

// isShort compares the values of tcp_mem (low, pressure, high; pages) with the pages in use,
// as /proc/net/sockstat writes them: "TCP: inuse 2 orphan 0 tw 0 alloc 2 mem 26".
func isShort(thresholds, sockstat string) (bool, error) {
	var low, pressure, high, pages uint64
	if n, err := fmt.Sscan(thresholds, &low, &pressure, &high); n != 3 {
		return false, fmt.Errorf("net.ipv4.tcp_mem is %q: %w", thresholds, err)
	}
	for line := range strings.Lines(sockstat) {
		if rest, ok := strings.CutPrefix(line, "TCP:"); ok {
			f := strings.Fields(rest)
			for i := 0; i+1 < len(f); i += 2 {
				if f[i] != "mem" {
					continue
				}
				var err error
				if pages, err = strconv.ParseUint(f[i+1], 10, 64); err != nil {
					return false, fmt.Errorf("/proc/net/sockstat: %w", err)
				}
				return pages > low/2+pressure/2, nil
			}
		}
	}
	return false, errors.New("/proc/net/sockstat does not have the memory of TCP")
}

// current reads the limits of namespaces. One whose owner chose its limits is left out.
func (b *bufferLimits) current(spaces []host.NetNS, wanted []uint64) map[uint64]buffers.Limits {
	limits := make(map[uint64]buffers.Limits, len(wanted))
	for _, cookie := range wanted {
		ns, ok := space(spaces, cookie)
		if !ok {
			continue
		}
		values, err := host.ReadSysctls(ns.Path, bufferSysctls)
		if err != nil {
			b.log.Debug("cannot read the buffer limits of a network namespace", "netns", ns.Path, "error", err)
			continue
		}
		var l buffers.Limits
		for w := range buffers.Both {
			if !b.sysctls.ownerChose(cookie, w.Sysctl(), values[w.Sysctl()]) {
				l[w] = thirdOf(values[w.Sysctl()])
			}
		}
		limits[cookie] = l
	}
	return limits
}

var bufferSysctls = []string{buffers.Receive.Sysctl(), buffers.Send.Sysctl()}

func space(spaces []host.NetNS, cookie uint64) (host.NetNS, bool) {
	for _, ns := range spaces {
		if ns.Cookie == cookie {
			return ns, true
		}
	}
	return host.NetNS{}, false
}

// thirdOf is the limit in a value of tcp_rmem or tcp_wmem; 0 if it is not three numbers.
func thirdOf(value string) uint64 {
	f := strings.Fields(value)
	if len(f) != 3 {
		return 0
	}
	n, err := strconv.ParseUint(f[2], 10, 63)
	if err != nil {
		return 0
	}
	return n
}

// apply writes a change, after the journal.
func (b *bufferLimits) apply(spaces []host.NetNS, c buffers.Change, now int64) error {
	ns, ok := space(spaces, c.NetNS)
	if !ok {
		return errors.New("the network namespace is gone")
	}
	// Both, because a crash may come before or after the write.
	before, after := b.control.Raised(), b.control.After(c, now)
	if err := b.journal.write(append(before, after)); err != nil {
		return err
	}
	value, err := writeLimit(ns, c)
	if err != nil {
		return errors.Join(err, b.journal.write(before))
	}
	b.sysctls.wrote(c.NetNS, c.Which.Sysctl(), value)
	b.control.Wrote(c, now)
	return b.journal.write(b.control.Raised())
}

var errLimitChanged = errors.New("an administrator has changed the value")

// writeLimit writes a limit in a namespace, if it is still what it was, and returns the whole
// value.
func writeLimit(ns host.NetNS, c buffers.Change) (value string, err error) {
	name := c.Which.Sysctl()
	err = netns.In(ns.Path, func() error {
		now, err := sysctl.Read(name)
		if err != nil {
			return err
		}
		if thirdOf(now) != c.From {
			return fmt.Errorf("%w: it is %q", errLimitChanged, now)
		}
		f := strings.Fields(now)
		value = fmt.Sprintf("%s %s %d", f[0], f[1], min(c.To, math.MaxInt32))
		return sysctl.Write(name, value)
	})
	return value, err
}

// adopt takes over the raises of the journal that are still in force.
func (b *bufferLimits) adopt() error {
	raised, err := b.journal.read()
	if err != nil || len(raised) == 0 {
		return err
	}
	spaces, _, err := b.spaces.Poll()
	if err != nil {
		return err
	}
	for _, r := range raised {
		ns, ok := space(spaces, r.NetNS)
		if !ok {
			continue
		}
		values, err := host.ReadSysctls(ns.Path, bufferSysctls)
		// A raise of which only the journal was written, and one that an administrator has
		// changed since, are not in force.
		if name := r.Which.Sysctl(); err == nil && thirdOf(values[name]) == r.Limit {
			b.control.Adopt(r)
			b.sysctls.wrote(r.NetNS, name, values[name])
		}
	}
	return nil
}

// adoptInherited takes over limits of namespaces that began with the raised limit of the
// initial one, so that they are taken back too.
func (b *bufferLimits) adoptInherited(spaces []host.NetNS, now int64) {
	for _, r := range b.control.Raised() {
		if r.NetNS != b.sysctls.own {
			continue
		}
		for _, ns := range spaces {
			if ns.Own {
				continue
			}
			name := r.Which.Sysctl()
			if values, err := host.ReadSysctls(ns.Path, bufferSysctls); err == nil && thirdOf(values[name]) == r.Limit {
				b.control.Adopt(buffers.Raised{NetNS: ns.Cookie, Which: r.Which, Original: r.Original, Limit: r.Limit, At: now,
					Why: "inherited from the initial network namespace"})
				b.sysctls.wrote(ns.Cookie, name, values[name])
			}
		}
	}
	b.save()
}

func (b *bufferLimits) forgetGone(spaces []host.NetNS) {
	b.control.Forget(func(cookie uint64) bool {
		_, ok := space(spaces, cookie)
		return ok
	})
}

func (b *bufferLimits) save() {
	if err := b.journal.write(b.control.Raised()); err != nil {
		b.log.Warn("raised buffer limits not noted: after a crash they would not be taken back", "error", err)
	}
}

// restore takes back all raises.
func (b *bufferLimits) restore() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	spaces, _, err := b.spaces.Poll()
	if err != nil {
		return err
	}
	b.adoptInherited(spaces, time.Now().UnixNano())
	var errs []error
	for _, c := range b.control.RestoreAll() {
		ns, ok := space(spaces, c.NetNS)
		if !ok {
			continue
		}
		value, err := writeLimit(ns, c)
		if err != nil && !errors.Is(err, errLimitChanged) {
			errs = append(errs, fmt.Errorf("network namespace %s: %w", spaceName(ns), err))
			continue
		}
		if err == nil {
			b.sysctls.wrote(c.NetNS, c.Which.Sysctl(), value)
		}
		b.control.Wrote(c, 0)
	}
	return errors.Join(append(errs, b.journal.write(b.control.Raised()))...)
}

// release lets limits be raised again that were left to the administrator.
func (b *bufferLimits) release() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.control.Release()
}

// state is what status shows; nil if limits are not adapted.
func (b *bufferLimits) state() *api.Buffers {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &api.Buffers{Limits: []api.BufferLimit{}}
	if until := b.control.PausedUntil(); until > time.Now().UnixNano() {
		s.PausedUntil = time.Unix(0, until)
	}
	for _, r := range b.control.Raised() {
		s.Limits = append(s.Limits, api.BufferLimit{NetNS: b.nameOf(r.NetNS), Sysctl: r.Which.Sysctl(),
			Original: r.Original, Limit: r.Limit, Since: time.Unix(0, r.At), Why: r.Why})
	}
	return s
}

// counts are the metrics; nil if limits are not adapted.
func (b *bufferLimits) counts() (list []metrics.BufferCount) {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range buffers.Both {
		n := metrics.BufferCount{Sysctl: w.Sysctl(), Raises: b.raises[w], TakenBack: b.backs[w]}
		for _, r := range b.control.Raised() {
			if r.Which == w {
				n.Raised++
			}
		}
		list = append(list, n)
	}
	return list
}

// nameOf names a namespace; empty is the daemon's own.
func (b *bufferLimits) nameOf(cookie uint64) string {
	if cookie == b.sysctls.own {
		return ""
	}
	if spaces, _, err := b.spaces.Poll(); err == nil {
		if ns, ok := space(spaces, cookie); ok {
			return spaceName(ns)
		}
	}
	return strconv.FormatUint(cookie, 10)
}

func (b *bufferLimits) problems() []string {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.problem == "" {
		return nil
	}
	return []string{b.problem}
}
