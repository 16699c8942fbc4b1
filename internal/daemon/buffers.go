package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
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
	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// bufferLimits raises the buffer limits of network namespaces as package buffers decides, and
// takes the raises back at the end.
type bufferLimits struct {
	log     *slog.Logger
	sysctls *sysctls
	journal journal[buffers.Raised]
	adapt   bool // buffers.adapt

	// Used by the task, and before and after it runs.
	netNSList  *host.NetNSList
	seen       map[uint64]bool  // namespaces that were listed before, by cookie
	unresolved []buffers.Raised // of the journal, whose namespaces are not listed
	initial    string           // path of the initial network namespace; empty is not known

	mu         sync.Mutex // of what follows
	controller *buffers.Controller
	list       []host.NetNS              // as listed last
	raises     [buffers.NumLimits]uint64 // since the start
	takenBack  [buffers.NumLimits]uint64 // limits that a shortage of memory took back
	problem    string                    // why nothing can be raised; empty if it can
	leftOver   string                    // why raises of an earlier tcpilot could not be taken back
}

// bufferJournal has the raised limits.
func bufferJournal(cfg *config.Config) journal[buffers.Raised] {
	return journalOf[buffers.Raised](cfg, "buffers.json", "raised buffer limits")
}

// openBuffers takes over what an earlier process raised. If the configuration does not ask for
// raised limits, they are taken back at once.
func (d *Daemon) openBuffers(cfg *config.Config, u *undo.Stack) error {
	b, err := newBufferLimits(cfg, d.sysctls, d.log)
	if err != nil {
		return err
	}
	u.Push("close list of network namespaces", b.netNSList.Close)
	d.buffers = b
	b.adapt = cfg.Buffers.Adapt
	if !b.adapt && !b.journal.exists() {
		return nil
	}
	if err := b.adopt(); err != nil {
		return err
	}
	if !b.adapt {
		if _, err := b.restore(); err != nil {
			b.leftOver = fmt.Sprintf("raised buffer limits of an earlier tcpilot cannot be taken back: %v", err)
			d.log.Warn(b.leftOver)
		}
		return nil
	}
	u.Push("restore buffer limits", func() error {
		if d.keep() {
			return nil
		}
		_, err := b.restore()
		return err
	})
	return nil
}

func newBufferLimits(cfg *config.Config, s *sysctls, log *slog.Logger) (*bufferLimits, error) {
	namespaces, err := host.NewNetNSList()
	if err != nil {
		return nil, err
	}
	return &bufferLimits{log: log, sysctls: s, netNSList: namespaces, seen: map[uint64]bool{}, controller: buffers.New(cfg.Buffers.Max),
		journal: bufferJournal(cfg)}, nil
}

// restoreBuffers takes back what a daemon that no longer runs raised, and returns what that was.
func restoreBuffers(cfg *config.Config) (undone []string, err error) {
	if !bufferJournal(cfg).exists() {
		return nil, nil
	}
	s, err := newSysctls(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	b, err := newBufferLimits(cfg, s, s.log)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	defer func() { err = errors.Join(err, b.netNSList.Close(), s.close()) }()
	if err := b.adopt(); err != nil {
		return nil, err
	}
	changes, err := b.restore()
	for _, c := range changes {
		where := ""
		if c.NetNS != s.own {
			where = " in network namespace " + b.nameOf(c.NetNS)
		}
		undone = append(undone, fmt.Sprintf("maximum of %s%s, raised from %d to %d", c.Which.Sysctl(), where, c.To, c.From))
	}
	return undone, err
}

// observe passes a sample of a connection that has reached a limit on.
func (b *bufferLimits) observe(s *tcp.Sample) {
	if !b.adapt || !s.Has(tcp.FlagRcvbufMax) && !s.Has(tcp.FlagSndbufMax) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.controller.Observe(s)
}

// adaptBuffers is the task that raises limits and takes them back.
func (d *Daemon) adaptBuffers(ctx context.Context) error {
	return every(ctx, watchInterval, func() error {
		d.buffers.poll(time.Now().UnixNano(), d.cfg.Load().Mode == engine.ModeObserve)
		return nil
	})
}

func (b *bufferLimits) poll(now int64, observe bool) {
	if err := b.listNetNS(now); err != nil {
		b.log.Debug("network namespaces not listed", "error", err)
		return
	}
	b.mu.Lock()
	wanted := b.controller.Wanted(now)
	b.mu.Unlock()
	if len(wanted) == 0 {
		b.setProblem("")
		return
	}
	short, err := b.shortOfMemory()
	if err != nil { // what cannot be watched is not raised
		b.setProblem(fmt.Sprintf("buffer limits are not raised, because the memory of TCP cannot be watched: %v", err))
		return
	}
	current := b.current(wanted)
	b.mu.Lock()
	changes, left := b.controller.Decide(now, current, short)
	b.mu.Unlock()
	for _, r := range left {
		b.log.Info("a buffer limit was changed by an administrator, left alone from now on", "netns", r.NetNS, "sysctl", r.Which.Sysctl(), "raised_to_bytes", r.Limit)
	}
	problem := ""
	for _, c := range changes {
		if observe && c.To > c.From {
			b.log.Info("buffer limit would be raised", changeAttrs(c)...)
			continue
		}
		if err := b.apply(c, now); err != nil {
			problem = fmt.Sprintf("%s cannot be written: %v", c.Which.Sysctl(), err)
			b.log.Debug("buffer limit not changed", append(changeAttrs(c), "error", err)...)
			continue
		}
		b.noteChange(c)
	}
	b.setProblem(problem)
	if len(left) > 0 {
		b.save()
	}
}

func (b *bufferLimits) noteChange(c buffers.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.To > c.From {
		b.raises[c.Which]++
		b.log.Info("buffer limit raised", changeAttrs(c)...)
		return
	}
	b.takenBack[c.Which]++
	b.log.Info("buffer limit taken back", changeAttrs(c)...)
}

// setProblem says why limits are not raised; empty if they are.
func (b *bufferLimits) setProblem(problem string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if problem != b.problem && problem != "" {
		b.log.Warn(problem)
	}
	b.problem = problem
}

func changeAttrs(c buffers.Change) []any {
	return []any{"netns", c.NetNS, "sysctl", c.Which.Sysctl(), "from_bytes", c.From, "to_bytes", c.To, "why", c.Why}
}

// current reads the limits of namespaces. One that the owner of the namespace chose is left out,
// unless tcpilot has raised it.
func (b *bufferLimits) current(wanted []uint64) map[uint64]buffers.Limits {
	limits := make(map[uint64]buffers.Limits, len(wanted))
	for _, cookie := range wanted {
		ns, ok := netNSByCookie(b.list, cookie)
		if !ok {
			continue
		}
		values, err := ns.ReadSysctls(bufferSysctls)
		if err != nil {
			b.log.Debug("cannot read the buffer limits of a network namespace", "netns", ns.Path, "error", err)
			continue
		}
		var l buffers.Limits
		for w := range buffers.NumLimits {
			value := values[w.Sysctl()]
			b.mu.Lock()
			raised := b.controller.IsRaised(cookie, w)
			b.mu.Unlock()
			if raised || !b.sysctls.ownerChose(cookie, w.Sysctl(), value) {
				l[w] = maximumOf(value)
			}
		}
		limits[cookie] = l
	}
	return limits
}

var bufferSysctls = []string{buffers.Receive.Sysctl(), buffers.Send.Sysctl()}

func netNSByCookie(namespaces []host.NetNS, cookie uint64) (host.NetNS, bool) {
	for _, ns := range namespaces {
		if ns.Cookie == cookie {
			return ns, true
		}
	}
	return host.NetNS{}, false
}

// maximumOf is the third number in a value of tcp_rmem or tcp_wmem; 0 if it is not three numbers.
func maximumOf(value string) uint64 {
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

// apply writes a change. The journal is written before a raise, because the daemon may crash in between.
func (b *bufferLimits) apply(c buffers.Change, now int64) error {
	ns, ok := netNSByCookie(b.list, c.NetNS)
	if !ok {
		return errors.New("the network namespace is gone")
	}
	before := b.raised()
	if c.To > c.From {
		b.mu.Lock()
		after := b.controller.After(c, now)
		b.mu.Unlock()
		if err := b.journal.write(append(before, after)); err != nil {
			return err
		}
		if ns.Own { // existing namespaces inherited the value from before the first raise
			if now, err := sysctl.Read(c.Which.Sysctl()); err == nil {
				b.sysctls.inheritedBefore(c.Which.Sysctl(), withMaximum(now, after.Original))
			}
		}
	}
	if err := b.write(ns, c); err != nil {
		return errors.Join(err, b.journal.write(before))
	}
	b.mu.Lock()
	b.controller.Wrote(c, now)
	b.mu.Unlock()
	b.save()
	return nil
}

// raised are the limits for the journal.
func (b *bufferLimits) raised() []buffers.Raised {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append(b.controller.Raised(), b.unresolved...)
}

// write writes a limit in a namespace, if it is still what it was.
func (b *bufferLimits) write(ns host.NetNS, c buffers.Change) error {
	name := c.Which.Sysctl()
	return b.sysctls.write(c.NetNS, name, func() (value string, err error) {
		err = ns.In(func() error {
			now, err := sysctl.Read(name)
			if err != nil {
				return err
			}
			if maximumOf(now) != c.From {
				return fmt.Errorf("%w: it is %q", errLimitChanged, now)
			}
			value = withMaximum(now, c.To)
			return sysctl.Write(name, value)
		})
		return value, err
	})
}

var errLimitChanged = errors.New("an administrator has changed the value")

// withMaximum replaces the third number in a value, in the form in which sysctls are compared.
func withMaximum(value string, limit uint64) string {
	f := strings.Fields(value)
	if len(f) != 3 {
		return value
	}
	return fmt.Sprintf("%s %s %d", f[0], f[1], min(limit, math.MaxInt32))
}

func (b *bufferLimits) save() {
	if err := b.journal.write(b.raised()); err != nil {
		b.log.Warn("raised buffer limits not written to the journal: after a crash they would not be taken back", "error", err)
	}
}

// restore takes back all raises, and returns those that it wrote.
func (b *bufferLimits) restore() (written []buffers.Change, err error) {
	if err := b.listNetNS(time.Now().UnixNano()); err != nil {
		return nil, err
	}
	b.mu.Lock()
	changes := b.controller.RestoreAll()
	b.mu.Unlock()
	var errs []error
	for _, c := range changes {
		ns, ok := netNSByCookie(b.list, c.NetNS)
		if !ok {
			continue
		}
		err := b.write(ns, c)
		if err != nil && !errors.Is(err, errLimitChanged) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("network namespace %s: %w", netNSName(ns), err))
			continue
		}
		if err == nil {
			written = append(written, c)
		}
		b.mu.Lock()
		b.controller.Wrote(c, 0)
		b.mu.Unlock()
	}
	return written, errors.Join(append(errs, b.journal.write(b.raised()))...)
}

// release lets limits be raised again that were left to the administrator.
func (b *bufferLimits) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.controller.Release()
}

// state is what status shows; nil if limits are not adapted.
func (b *bufferLimits) state() *api.Buffers {
	if !b.adapt {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &api.Buffers{Limits: []api.BufferLimit{}}
	if until := b.controller.PausedUntil(time.Now().UnixNano()); until != 0 {
		s.PausedUntil = time.Unix(0, until)
	}
	for _, r := range b.controller.Raised() {
		s.Limits = append(s.Limits, api.BufferLimit{NetNS: b.nameOf(r.NetNS), Sysctl: r.Which.Sysctl(),
			Original: r.Original, Limit: r.Limit, Since: time.Unix(0, r.At), Why: r.Why})
	}
	return s
}

// counts are the metrics; nil if limits are not adapted.
func (b *bufferLimits) counts() (list []metrics.BufferCount) {
	if !b.adapt {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range buffers.NumLimits {
		n := metrics.BufferCount{Sysctl: w.Sysctl(), Raises: b.raises[w], TakenBack: b.takenBack[w]}
		for _, r := range b.controller.Raised() {
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
	if ns, ok := netNSByCookie(b.list, cookie); ok {
		return netNSName(ns)
	}
	return strconv.FormatUint(cookie, 10)
}

func (b *bufferLimits) problems() (list []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range []string{b.problem, b.leftOver} {
		if p != "" {
			list = append(list, p)
		}
	}
	return list
}
