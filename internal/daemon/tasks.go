package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime/debug"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// Pace of the periodic work. Intervals are multiples of each other where they can
// be, so that an idle daemon wakes up once for all of them: a wake-up costs more
// than the work that waits for it.
const (
	tickInterval  = 2500 * time.Millisecond
	watchInterval = 2 * tickInterval // sysctls, congestion controls, cgroups, namespaces
	// reviveInterval is the time until arms that the kernel refused are tried again:
	// long, since each try costs connections their arm.
	reviveInterval = 10 * time.Minute
	freeInterval   = time.Minute // at least, between two collections for a snapshot's sake: 10 ms each
)

// makeTasks lists what runs until the daemon stops. Listening sockets are opened
// here, so that a taken address is an error at the start.
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
		{"store", d.saveBeliefs},
		{"reload", d.serveReloads},
		{"api", func(ctx context.Context) error {
			return sockets[0].serve(func(l net.Listener) error { return server.Serve(ctx, l) })
		}},
		{"api for reading", func(ctx context.Context) error {
			return sockets[1].serve(func(l net.Listener) error { return server.ServeReadOnly(ctx, l) })
		}},
	}
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

// listenAPI makes the administrators' socket, and the one for reading, and finds the
// group that may change something.
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

// readSocket is the path of the socket for reading.
func readSocket(c *config.Socket) string {
	if c.Read.Path != "" {
		return c.Read.Path
	}
	return api.ReadSocket(c.Path)
}

// socket is a listening socket that is opened again when it is served again: a
// server closes it.
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

// readSamples feeds the engine. Whenever it has caught up, the engine decides,
// so that the next connection of a path already profits.
func (d *Daemon) readSamples(ctx context.Context) error {
	return d.dp.Read(ctx, func(s *tcp.Sample) {
		d.received.Add(1)
		if s.Kind == tcp.KindInterval {
			d.intervals.Add(1)
		}
		d.engine.Observe(s)
		d.live.Observe(s)
		d.hub.Publish(s)
	}, func() { d.engine.Tick(time.Now().UnixNano()) })
}

// renewLease lets the kernel go on, and retires arms that it refused.
func (d *Daemon) renewLease(ctx context.Context) error {
	lease := d.cfg.Load().Learning.Lease
	var freed time.Time
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
		if d.engine.DropSnapshot(now) && now.Sub(freed) > freeInterval {
			debug.FreeOSMemory() // nothing else makes garbage: it would stay for long
			freed = now
		}
		return nil
	})
}

// watchHost follows what changes outside: sysctls, congestion controls, and the
// cgroups and namespaces that rules name.
func (d *Daemon) watchHost(ctx context.Context) error {
	revived := time.Now()
	return every(ctx, watchInterval, func() error {
		if d.sysctls.poll(d.engine) || d.settings.due.Load() {
			_ = d.engine.Settle(time.Now().UnixNano()) // so that policies say the same as the settings
			if err := d.putSettings(); err != nil {
				return err
			}
		}
		d.controls.regain(ctx)
		if err := d.controls.offer(d.engine); err != nil {
			d.log.Debug("congestion controls not looked up", "error", err)
		}
		if now := time.Now(); now.Sub(revived) > reviveInterval {
			d.engine.ReviveArms()
			revived = now
		}
		if namesThings(d.engine.Rules()) {
			return d.engine.Recompile(resolver())
		}
		return nil
	})
}

// sampleLive walks the connections of every network namespace. The kernel goes
// through its whole table of sockets for each of them, so a walk is left out where
// it would find nothing, and its share of a CPU is bounded.
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
		start := time.Now()
		found := d.intervals.Load() != seen || start.Sub(last) >= quietWalk
		if !found {
			if found, err = d.dp.HasAged(interval); err != nil {
				return err
			}
		}
		if !found || start.Before(next) {
			return nil
		}
		seen, last = d.intervals.Load(), start
		all, err := d.walk(list)
		if err != nil {
			return err
		}
		if all {
			d.freeLost(max(interval, lostAfter) + time.Since(start))
		}
		next = start.Add(time.Since(start) * walkBudget)
		return nil
	})
}

const (
	// quietWalk is the longest time between two walks.
	quietWalk = time.Minute
	// walkBudget is the part of one CPU, as 1/walkBudget, that walks may take.
	walkBudget = 500
	// lostAfter is how old a connection must be that walks did not meet for its end to
	// count as missed. What walks never meet lives shorter: handshakes, and what was reset
	// and waits for its process to close it.
	lostAfter = 10 * time.Minute
)

// walk reports whether it went through all namespaces.
func (d *Daemon) walk(list *host.NetNSList) (all bool, err error) {
	spaces, _, err := list.Poll()
	if err != nil {
		return false, err
	}
	all = true
	for _, ns := range spaces {
		if err := d.sampleNetNS(ns); err != nil && !errors.Is(err, os.ErrNotExist) {
			all = false
			d.log.Debug("live connections of a network namespace not read", "netns", ns.Path, "error", err)
		}
	}
	return all, nil
}

func (d *Daemon) freeLost(age time.Duration) {
	n, err := d.dp.FreeLost(age)
	if err != nil {
		d.log.Warn("connections whose end was missed are still remembered: trying again", "error", err)
	}
	if n > 0 {
		d.log.Info("connections forgotten whose end the kernel did not show", "connections", n)
	}
}

func (d *Daemon) sampleNetNS(ns host.NetNS) error {
	if ns.Own {
		return d.dp.SampleLive()
	}
	return netns.In(ns.Path, d.dp.SampleLive)
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

// every calls f at once and then at each multiple of interval until ctx ends or f
// fails. Multiples are of the wall clock's, so that tasks of one pace wake together.
func every(ctx context.Context, interval time.Duration, f func() error) error {
	for {
		if err := f(); err != nil {
			return err
		}
		now := time.Now()
		t := time.NewTimer(now.Truncate(interval).Add(interval).Sub(now))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}
