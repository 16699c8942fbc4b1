package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/bigtcp"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// bigTCP makes network devices accept larger packets, and restores their sizes at the end (design note 25).
// A device that somebody else changes while tcpilot runs is left alone. Its methods need pods.mu.
type bigTCP struct {
	log     *slog.Logger
	journal journal[resized]
	list    []resized              // in force, in the order in which they were set; as in the journal
	left    map[deviceAt]string    // left alone, and why
	looked  map[deviceAt]time.Time // when those of list were last read
	path    bigtcp.Path            // as found last
	refused error                  // why there is no path
}

// deviceAt identifies a network device by the cookie of its network namespace and by its index.
type deviceAt struct {
	NetNS uint64 `json:"netns"`
	Index int    `json:"ifindex"`
}

// resized is a device whose sizes of packets were changed.
type resized struct {
	deviceAt
	Path     string        `json:"path"` // of its network namespace; empty for the daemon's own
	Device   string        `json:"device"`
	Original bigtcp.Values `json:"original"`
	Value    bigtcp.Values `json:"value"`
	// Was is the value before Value. After a crash between the two, the device may have either.
	Was bigtcp.Values `json:"was"`
}

// target is a device that is to have larger packets.
type target struct {
	deviceAt
	path string
	goal bigtcp.Goal
}

// lookAgainAtDevices is how often the sizes of a device that has the wanted ones are read again.
const lookAgainAtDevices = time.Minute

func newBigTCP(cfg *config.Config, log *slog.Logger) *bigTCP {
	return &bigTCP{log: log, journal: journalOf[resized](cfg, "big-tcp.json", "sizes of packets of devices"),
		left: map[deviceAt]string{}, looked: map[deviceAt]time.Time{}}
}

// restoreBigTCP takes back what a daemon that no longer runs changed, and returns what that was.
func restoreBigTCP(cfg *config.Config) (undone []string, err error) {
	b := newBigTCP(cfg, slog.New(slog.DiscardHandler))
	if err := b.adopt(); err != nil {
		return nil, err
	}
	for _, r := range b.list {
		undone = append(undone, fmt.Sprintf("sizes of packets of device %s%s", r.Device, ofNetNS(r.Path)))
	}
	return undone, b.restore(func(*resized) bool { return true })
}

func ofNetNS(path string) string {
	if path == "" {
		return ""
	}
	return " in network namespace " + path
}

// adopt takes over what an earlier process changed.
func (b *bigTCP) adopt() error {
	list, err := b.journal.read()
	if err != nil {
		b.log.Warn("sizes of packets that an earlier tcpilot has set are not known", "error", err)
		return b.journal.setAside()
	}
	b.list = list
	return nil
}

// follow makes these devices accept larger packets, in this order, and restores all others. It returns the
// devices that do not accept them, and why.
func (b *bigTCP) follow(targets []target, now time.Time) map[deviceAt]error {
	failed := map[deviceAt]error{}
	wanted := func(r *resized) bool {
		return slices.ContainsFunc(targets, func(t target) bool { return t.deviceAt == r.deviceAt })
	}
	if err := b.restore(func(r *resized) bool { return !wanted(r) }); err != nil {
		b.log.Warn("sizes of packets of devices not all taken back", "error", err)
	}
	var wanting []resized
	for _, t := range targets {
		r, err := b.look(t, now)
		if err != nil {
			failed[t.deviceAt] = err
		} else if r != nil {
			wanting = append(wanting, *r)
		}
	}
	b.give(wanting, now, failed)
	return failed
}

func (b *bigTCP) find(at deviceAt) *resized {
	i := slices.IndexFunc(b.list, func(r resized) bool { return r.deviceAt == at })
	if i < 0 {
		return nil
	}
	return &b.list[i]
}

// isFresh reports whether a device that has what it should have need not be read again yet.
func (b *bigTCP) isFresh(at deviceAt, now time.Time) bool {
	return now.Sub(b.looked[at]) < lookAgainAtDevices
}

// look returns what a device is to get; nil if it has it.
func (b *bigTCP) look(t target, now time.Time) (*resized, error) {
	if why, left := b.left[t.deviceAt]; left {
		return nil, errors.New(why)
	}
	have := b.find(t.deviceAt)
	if have != nil && have.Value == t.goal.Of(have.Original) && b.isFresh(t.deviceAt, now) {
		return nil, nil
	}
	var d rtnetlink.Link
	var values bigtcp.Values
	err := netns.InSame(t.path, t.NetNS, func() (err error) {
		d, values, err = bigtcp.Read(t.Index)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read sizes of packets of device %d: %w", t.Index, err)
	}
	values = values.Of(bigtcp.Values{MTU6: t.goal.MTU6})
	adopted := b.looked[t.deviceAt].IsZero()
	b.looked[t.deviceAt] = now
	next := resized{deviceAt: t.deviceAt, Path: t.path, Device: d.Name, Original: values, Was: values}
	switch {
	case have == nil, adopted && values == have.Original: // an earlier process was killed between journal and change
	case values == have.Value, adopted && values == have.Was:
		next.Original = have.Original
	default:
		b.leave(t.deviceAt, fmt.Sprintf("somebody has changed sizes of packets of device %s: left alone until tcpilot reads its configuration again", d.Name))
		return nil, errors.New(b.left[t.deviceAt])
	}
	if next.Value = t.goal.Of(next.Original); next.Value == values {
		return nil, nil
	}
	return &next, nil
}

// leave leaves a device to whoever has changed it. What is not theirs comes back: with another MTU, packets may be too large.
func (b *bigTCP) leave(at deviceAt, why string) {
	b.left[at] = why
	b.log.Warn(why)
	if err := b.restore(func(r *resized) bool { return r.deviceAt == at }); err != nil {
		b.log.Warn("sizes of packets of devices not all taken back", "error", err)
	}
}

func (b *bigTCP) drop(which func(*resized) bool) {
	b.list = slices.DeleteFunc(b.list, func(r resized) bool {
		if which(&r) {
			delete(b.looked, r.deviceAt)
			return true
		}
		return false
	})
}

func (b *bigTCP) save() {
	if err := b.journal.write(b.list); err != nil {
		b.log.Warn("sizes of packets of devices not written to the journal: after a crash they would not be taken back", "error", err)
	}
}

// give sets sizes. The journal is written before, because the daemon may crash in between: once for all sizes,
// because it is one file, and there may be thousands of pods.
func (b *bigTCP) give(wanting []resized, now time.Time, failed map[deviceAt]error) {
	if len(wanting) == 0 {
		return
	}
	for _, r := range wanting {
		if have := b.find(r.deviceAt); have != nil {
			*have = r
		} else {
			b.list = append(b.list, r)
		}
	}
	if err := b.journal.write(b.list); err != nil {
		for _, r := range wanting {
			failed[r.deviceAt] = err
			if r.Was == r.Original {
				b.drop(func(in *resized) bool { return in.deviceAt == r.deviceAt })
			} else { // the journal still has the former value, which is in force
				b.find(r.deviceAt).Value = r.Was
			}
		}
		return
	}
	for _, r := range wanting {
		if err := b.set(&r); err != nil {
			failed[r.deviceAt] = err
			continue
		}
		b.looked[r.deviceAt] = now
		b.log.Info("largest packets of a device changed for BIG TCP", "device", r.Device, "netns", r.Path, "before", r.Was, "now", r.Value)
	}
	if len(failed) > 0 {
		b.save()
	}
}

// set sets the sizes of one device. If that fails, the device keeps its original ones.
func (b *bigTCP) set(r *resized) error {
	err := netns.InSame(r.Path, r.NetNS, func() error {
		err := bigtcp.Set(r.Index, r.Value)
		if err == nil || isGone(err) {
			return err
		}
		return errors.Join(err, bigtcp.Set(r.Index, r.Original))
	})
	if err != nil {
		b.drop(func(in *resized) bool { return in.deviceAt == r.deviceAt })
		if !isGone(err) {
			b.left[r.deviceAt] = fmt.Sprintf("device %s: %v", r.Device, err)
		}
		return fmt.Errorf("device %s: %w", r.Device, err)
	}
	return nil
}

// isGone reports whether a device or its network namespace does not exist any more.
func isGone(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, fs.ErrNotExist) }

// restore restores the sizes of devices, the last one first, except those that somebody else has changed.
// Devices for which it fails stay in the journal.
func (b *bigTCP) restore(which func(*resized) bool) error {
	if !slices.ContainsFunc(b.list, func(r resized) bool { return which(&r) }) {
		return nil
	}
	var errs []error
	done := map[deviceAt]bool{}
	namespaces := lazyNetNSList{}
	for _, r := range slices.Backward(b.list) {
		if !which(&r) {
			continue
		}
		err := restoreDevice(&r, netns.InSame)
		if errors.Is(err, fs.ErrNotExist) { // the namespace is gone, or can only be reached by another path
			err = restoreDevice(&r, namespaces.in)
		}
		if err != nil && !isGone(err) {
			errs = append(errs, fmt.Errorf("device %s%s: %w", r.Device, ofNetNS(r.Path), err))
			continue
		}
		done[r.deviceAt] = true
		if err == nil {
			b.log.Info("largest packets of a device taken back", "device", r.Device, "netns", r.Path, "now", r.Original)
		}
	}
	b.drop(func(r *resized) bool { return done[r.deviceAt] })
	return errors.Join(append(errs, namespaces.close(), b.journal.write(b.list))...)
}

func restoreDevice(r *resized, in func(path string, cookie uint64, f func() error) error) error {
	return in(r.Path, r.NetNS, func() error {
		_, now, err := bigtcp.Read(r.Index)
		if err != nil {
			return err
		}
		now = now.Of(r.Value)
		back := bigtcp.Restored(now, r.Value, r.Original)
		if now == r.Was {
			back = r.Original
		}
		if back == now {
			return nil
		}
		return bigtcp.Set(r.Index, back)
	})
}

// lazyNetNSList finds network namespaces by their cookies. It lists them when the first one is asked for.
type lazyNetNSList struct {
	netNSList *host.NetNSList
	list      []host.NetNS
}

func (l *lazyNetNSList) in(_ string, cookie uint64, f func() error) (err error) {
	if l.netNSList == nil {
		if l.netNSList, err = host.NewNetNSList(); err != nil {
			return err
		}
		if l.list, _, err = l.netNSList.Poll(); err != nil {
			return err
		}
	}
	ns, ok := netNSByCookie(l.list, cookie)
	if !ok {
		return fs.ErrNotExist
	}
	return ns.In(f)
}

func (l *lazyNetNSList) close() error {
	if l.netNSList == nil {
		return nil
	}
	return l.netNSList.Close()
}
