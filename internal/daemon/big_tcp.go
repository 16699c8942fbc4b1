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

// bigTCP gives devices larger packets, and what they had before back (design note 25). Whoever changes
// one while tcpilot runs has the last word. Its methods need pods.mu.
type bigTCP struct {
	log     *slog.Logger
	journal journal[resized]
	list    []resized              // in force, in the order in which they were set; as in the journal
	left    map[deviceAt]string    // left alone, and why
	looked  map[deviceAt]time.Time // when those of list were last read
	path    bigtcp.Path            // of now
	refused error                  // why there is none
}

// deviceAt is a network device: of a namespace, by its cookie.
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

// lookAgainAtDevices is how often the sizes of a device are read that has what it should have.
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

// follow has these devices, in this order, and no others have larger packets. It returns which do not, and why.
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
	case have == nil, adopted && values == have.Original: // a process that was killed had noted it only
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

// leave leaves a device to whoever has changed it.
func (b *bigTCP) leave(at deviceAt, why string) {
	b.left[at] = why
	b.log.Warn(why)
	b.drop(func(r *resized) bool { return r.deviceAt == at })
	b.save()
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
		b.log.Warn("sizes of packets of devices not noted: after a crash they would not be taken back", "error", err)
	}
}

// give sets sizes. They are noted before, because a crash may come next: all together, because the note is one
// file, and there may be thousands of pods.
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
			} else { // the note has the value of before, which is in force
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

// set sets the sizes of one device, or nothing.
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

// restore gives devices back what they had, the last one first, except where somebody else has changed it.
// What fails stays noted.
func (b *bigTCP) restore(which func(*resized) bool) error {
	if !slices.ContainsFunc(b.list, func(r resized) bool { return which(&r) }) {
		return nil
	}
	var errs []error
	done := map[deviceAt]bool{}
	spaces := laterNetNS{}
	for _, r := range slices.Backward(b.list) {
		if !which(&r) {
			continue
		}
		err := restoreDevice(&r, netns.InSame)
		if errors.Is(err, fs.ErrNotExist) { // unless it only cannot be reached by that path any more
			err = restoreDevice(&r, spaces.in)
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
	return errors.Join(append(errs, spaces.close(), b.journal.write(b.list))...)
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

// laterNetNS finds network namespaces by their cookies. It lists them when the first one is asked for.
type laterNetNS struct {
	spaces *host.NetNSList
	list   []host.NetNS
}

func (l *laterNetNS) in(_ string, cookie uint64, f func() error) (err error) {
	if l.spaces == nil {
		if l.spaces, err = host.NewNetNSList(); err != nil {
			return err
		}
		if l.list, _, err = l.spaces.Poll(); err != nil {
			return err
		}
	}
	ns, ok := space(l.list, cookie)
	if !ok {
		return fs.ErrNotExist
	}
	return ns.In(f)
}

func (l *laterNetNS) close() error {
	if l.spaces == nil {
		return nil
	}
	return l.spaces.Close()
}
