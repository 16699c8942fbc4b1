package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// Intervals of the periodic work. Most are multiples of each other, so that an idle daemon
// wakes up once for all of them: a wake-up costs more than the work.
const (
	tickInterval  = 2500 * time.Millisecond
	watchInterval = 2 * tickInterval // sysctls, congestion controls, cgroups, namespaces
	// reviveInterval is the time until arms that the kernel refused are tried again. It is
	// long, because connections of a failed try get no arm.
	reviveInterval = 10 * time.Minute
	freeInterval   = time.Minute // least time between two snapshots whose memory is given back: 20 ms each
)

// makeTasks lists the tasks that run until the daemon stops. Listening sockets are opened
// here, so that an address in use is an error at the start.
func (d *Daemon) makeTasks(cfg *config.Config, u *undo.Stack) ([]task, error) {
	sockets, admins, err := listenAPI(&cfg.Socket, u)
	if err != nil {
		return nil, err
	}
	server := api.NewServer(d, admins, d.log)
	tasks := []task{
		{"samples", d.readSamples},
		{"lease", d.renewLease},
		{"watch", d.watchHost},
		{"live connections", d.sampleLive},
		{"rate limits", d.divideLimits},
		{"store", d.saveBeliefs},
		{"reload", d.serveReloads},
		{"api", func(ctx context.Context) error {
			return sockets[0].serve(func(l net.Listener) error { return server.Serve(ctx, l) })
		}},
		{"api for reading", func(ctx context.Context) error {
			return sockets[1].serve(func(l net.Listener) error { return server.ServeReadOnly(ctx, l) })
		}},
	}
	if d.buffers.adapt {
		tasks = append(tasks, task{"buffer limits", d.adaptBuffers})
	}
	if d.profile.wanted() {
		tasks = append(tasks, task{"host profile", d.holdProfile})
	}
	tasks = append(tasks, d.podAPITasks(&cfg.Pods.Kubernetes)...)
	tasks = append(tasks, d.nodeRoutesTasks(cfg)...)
	if cfg.Metrics.Listen == "" {
		return tasks, nil
	}
	metricsSocket, err := openSocket("close metrics socket", u, func() (net.Listener, error) {
		return net.Listen("tcp", cfg.Metrics.Listen)
	})
	if err != nil {
		return nil, fmt.Errorf("listen for metrics (metrics.listen, empty is off): %w", err)
	}
	reg, err := metrics.NewRegistry(metrics.NewCollector(d.source(), d.opt.Version, cfg.Metrics.TopPaths))
	if err != nil {
		return nil, err
	}
	return append(tasks, task{"metrics", func(ctx context.Context) error {
		return metricsSocket.serve(func(l net.Listener) error {
			return metrics.Serve(ctx, l, metrics.Handler(reg, d.log), d.log)
		})
	}}), nil
}

// listenAPI opens the administrators' socket and the read-only one, and finds the group that
// may use the first.
func listenAPI(c *config.Socket, u *undo.Stack) (sockets [2]*socket, admins int, err error) {
	if admins, err = groupID(c.Admins); err != nil {
		return sockets, 0, err
	}
	for i, s := range []struct {
		path, group string
		mode        fs.FileMode
	}{{c.Path, c.Group, c.Mode}, {readSocket(c), c.Read.Group, c.Read.Mode}} {
		gid, err := groupID(s.group)
		if err != nil {
			return sockets, 0, err
		}
		sockets[i], err = openSocket("close API socket", u, func() (net.Listener, error) {
			return api.Listen(s.path, s.mode, gid)
		})
		if err != nil {
			return sockets, 0, err
		}
	}
	return sockets, admins, nil
}

// readSocket is the path of the read-only socket.
func readSocket(c *config.Socket) string {
	if c.Read.Path != "" {
		return c.Read.Path
	}
	return api.ReadSocket(c.Path)
}

// socket is a listening socket that is opened again when its task is started again, because
// a server closes it.
type socket struct {
	open   func() (net.Listener, error)
	l      net.Listener
	served bool
}

func openSocket(undoes string, u *undo.Stack, open func() (net.Listener, error)) (*socket, error) {
	l, err := open()
	if err != nil {
		return nil, err
	}
	s := &socket{open: open, l: l}
	u.Push(undoes, func() error {
		if err := s.l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return s, nil
}

func (s *socket) serve(f func(net.Listener) error) error {
	if s.served {
		_ = s.l.Close()
		l, err := s.open()
		if err != nil {
			return err
		}
		s.l = l
	}
	s.served = true
	return f(s.l)
}

// readSamples passes samples to the engine. When there are no more, the engine decides, so
// that the next connection of a path already gets the result.
func (d *Daemon) readSamples(ctx context.Context) error {
	return d.dp.Read(ctx, func(s *tcp.Sample) {
		d.received.Add(1)
		if s.Kind == tcp.KindInterval {
			d.intervals.Add(1)
		}
		d.engine.Observe(s)
		d.live.Observe(s)
		d.pods.observe(s)
		d.buffers.observe(s)
		d.hub.Publish(s)
	}, func() { d.engine.Tick(time.Now().UnixNano()) })
}

// renewLease renews the lease of the kernel's programs, and retires arms that the kernel
// refused.
func (d *Daemon) renewLease(ctx context.Context) error {
	lease := d.cfg.Load().Learning.Lease
	var free freer
	return every(ctx, leaseInterval(lease), func() error {
		if err := d.dp.SetLease(lease); err != nil {
			return err
		}
		d.notify(systemd.SdNotifyWatchdog)
		failures, err := d.dp.CCErrors()
		if err != nil {
			return err
		}
		for cc, n := range failures {
			d.engine.ArmFailed(cc, n)
		}
		now := time.Now()
		d.engine.Tick(now.UnixNano())
		free.tick(now, d.engine.DropSnapshot(now))
		return nil
	})
}

// freer gives memory back to the kernel after a snapshot was dropped: little else allocates, so the next
// collection may be far off, and the pages of code that answered the client are not needed again soon.
type freer struct {
	due  int // collections
	last time.Time
}

// tick is called regularly. It collects twice: a single collection left up to 4 MB in one of 50 runs, which
// another thread was still sweeping.
func (f *freer) tick(now time.Time, dropped bool) {
	if dropped {
		f.due = 2
	}
	if f.due == 1 || f.due == 2 && now.Sub(f.last) > freeInterval {
		freeMemory()
		f.due--
		f.last = now
	}
}

// watchHost polls for changes of the host: sysctls, congestion controls, and the cgroups,
// namespaces and pods that rules name.
func (d *Daemon) watchHost(ctx context.Context) error {
	revived := time.Now()
	return every(ctx, watchInterval, func() error {
		if d.sysctls.poll(d.engine) || d.settings.due.Load() {
			_ = d.engine.Settle(time.Now().UnixNano()) // so that policies match the settings
			if err := d.putSettings(); err != nil {
				return err
			}
		}
		d.controls.retryLoads(ctx)
		if err := d.controls.offer(d.engine); err != nil {
			d.log.Debug("congestion controls not looked up", "error", err)
		}
		if now := time.Now(); now.Sub(revived) > reviveInterval {
			d.engine.ReviveArms()
			revived = now
		}
		d.pods.mu.Lock() // usually the CNI plugin asks for it
		defer d.pods.mu.Unlock()
		d.readPods(d.controls.usableBefore) // offer has read the kernel's list
		d.masqueradePods(time.Now())
		d.followPodDevices()
		return d.followPods()
	})
}

// sampleLive walks the connections of every network namespace. For each namespace the kernel
// walks its whole table of sockets, so a walk is skipped if it would find nothing, and its
// share of a CPU is bounded.
func (d *Daemon) sampleLive(ctx context.Context) error {
	interval := d.cfg.Load().Interval
	if interval == 0 {
		<-ctx.Done()
		return nil
	}
	list, err := host.NewNetNSList()
	if err != nil {
		return err
	}
	defer list.Close()
	var seen uint64
	var next, last time.Time
	return every(ctx, interval, func() error {
		start, used := time.Now(), cpuTime()
		found := d.dp.WantsWalk() || d.intervals.Load() != seen || start.Sub(last) >= quietWalk
		if !found {
			if found, err = d.dp.HasAged(interval, interval+lostAfter); err != nil {
				return err
			}
		}
		if !found || start.Before(next) {
			return nil
		}
		seen, last = d.intervals.Load(), start
		all, err := d.walkAndCheck(list)
		if err != nil {
			return err
		}
		if all {
			freeLost(d.dp, interval+lostAfter+time.Since(start), d.log)
		}
		next = start.Add((cpuTime() - used) * walkBudget)
		return nil
	})
}

const (
	// quietWalk is the longest time between two walks.
	quietWalk = time.Minute
	// walkBudget is the part of one CPU, as 1/walkBudget, that walks may take.
	walkBudget = 500
	// lostAfter, beyond the interval, is the age from which a connection that walks did not find
	// has probably ended without a report. Live connections that walks do not find are younger: those
	// in their handshake, and those that were reset and not closed by their process yet. Those of
	// a network namespace that is not listed may be older.
	lostAfter = 10 * time.Minute
	// scarce is the share of slots in use from which the slots of such connections are freed:
	// then a quarter of all connections find both of their slots taken, and get socket storage,
	// which costs 1.2 us more (docs/design/0001-slots.md).
	scarce = 0.5
)

// cpuTime is what the process has used; 0 if that cannot be read.
func cpuTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// walkAndCheck walks the connections of all network namespaces, and corrects the numbers of connections of
// paths by what it found.
func (d *Daemon) walkAndCheck(list *host.NetNSList) (all bool, err error) {
	tooMany, tooFew, err := d.dp.Walk(func() (bool, error) {
		all, err = d.inAll(list, d.dp.SampleLive)
		return all, err
	})
	if tooMany+tooFew > 0 {
		d.log.Info("corrected the numbers of connections of paths", "too_many", tooMany, "too_few", tooFew)
	}
	return all, err
}

// inAll calls f in every network namespace, and reports whether it succeeded in all of them.
func (d *Daemon) inAll(list *host.NetNSList, f func() error) (all bool, err error) {
	all = true
	err = eachNetNS(list, f, func(ns host.NetNS, err error) {
		all = false
		d.log.Debug("cannot read the connections of a network namespace", "netns", ns.Path, "error", err)
	})
	return all && err == nil, err
}

// inAllNetNS calls f in every network namespace, and returns the errors of all of them.
func inAllNetNS(list *host.NetNSList, f func() error) (errs error) {
	err := eachNetNS(list, f, func(ns host.NetNS, err error) {
		errs = errors.Join(errs, fmt.Errorf("network namespace %s: %w", ns.Path, err))
	})
	return errors.Join(errs, err)
}

// eachNetNS calls f in every network namespace. If f fails, it calls failed, unless the namespace is
// gone.
func eachNetNS(list *host.NetNSList, f func() error, failed func(host.NetNS, error)) error {
	namespaces, _, err := list.Poll()
	if err != nil {
		return err
	}
	for _, ns := range namespaces {
		if err := inNetNS(ns, f); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed(ns, err)
		}
	}
	return nil
}

// slots are the datapath's slots of young connections.
type slots interface {
	UsedSlots() (used, all int, err error)
	FreeLost(age time.Duration) (n int, err error)
}

// freeLost frees the slots of connections whose end was missed, if slots are scarce. Not before,
// because a connection may also live in a network namespace that is not listed: one that only a
// thread, a socket or a descriptor keeps, or any of another PID namespace. It would not be
// sampled at its end.
func freeLost(in slots, age time.Duration, log *slog.Logger) {
	n, used, all := 0, 0, 0
	var err error
	if used, all, err = in.UsedSlots(); err == nil && float64(used) >= scarce*float64(all) {
		n, err = in.FreeLost(age)
	}
	if err != nil {
		log.Warn("cannot free the state of connections whose end was missed, trying again", "error", err)
	}
	if n > 0 {
		log.Info("freed the state of connections that were in no list of sockets", "connections", n, "used", used, "of", all)
	}
}

func inNetNS(ns host.NetNS, f func() error) error {
	if ns.Own {
		return f()
	}
	return ns.In(f)
}

// serveReloads reads the configuration again on SIGHUP or when the API asks.
func (d *Daemon) serveReloads(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.hup:
			_, _ = d.reload() // logged there
		case r := <-d.reloads:
			result, err := d.reload()
			r.done <- reloadAnswer{result, err}
		}
	}
}

// every calls f at once and then at each multiple of interval of the wall clock, until ctx
// ends or f fails. So tasks with the same interval wake up together.
func every(ctx context.Context, interval time.Duration, f func() error) error {
	for {
		if err := f(); err != nil {
			return err
		}
		now := time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(now.Truncate(interval).Add(interval).Sub(now)):
		}
	}
}
