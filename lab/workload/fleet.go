package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/measure"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// loadPort is where load agents serve, on both families.
const loadPort = 5202

// Fleet is the load agents on the senders and receivers of a layout.
type Fleet struct {
	layout *topology.Layout
	place  func(host string) load.Placer
	agents map[string]*load.Agent // by host
	dir    string                 // for files of other programs; made when one needs it
}

// Start starts an agent on each sender and receiver. place returns the cgroup of a host's
// processes. It may be nil, and may return nil: then they stay in that of this process.
func Start(ctx context.Context, l *topology.Layout, place func(host string) load.Placer) (*Fleet, error) {
	if place == nil {
		place = func(string) load.Placer { return nil }
	}
	f := &Fleet{layout: l, place: place, agents: map[string]*load.Agent{}}
	for _, hosts := range [][]*topology.Host{l.Senders, l.Receivers} {
		for _, h := range hosts {
			a, err := load.StartAgent(h, place(h.Name))
			if err != nil {
				return nil, errors.Join(fmt.Errorf("start agent on %s: %w", h.Name, err), f.Close())
			}
			f.agents[h.Name] = a
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Run makes one round of traffic: all parts at the same time, each from its Start on.
// Failures of connections are recorded in the result; they are not errors. It returns an
// error if a part is impossible, or if ctx ended, which stops all traffic at once. Only one
// round may run at a time.
func (f *Fleet) Run(ctx context.Context, parts []Spec) (measure.Result, error) {
	r := &round{Fleet: f, accounts: map[uint64]load.Account{}}
	if err := r.plan(parts); err != nil {
		return measure.Result{}, fmt.Errorf("plan traffic: %w", err)
	}
	if err := r.open(ctx); err != nil {
		return measure.Result{}, r.abandon(fmt.Errorf("start servers: %w", err))
	}
	before := r.cpu(ctx)
	r.begin = load.Now()
	var going sync.WaitGroup
	for _, l := range r.hostPairs {
		going.Go(func() { l.run(ctx) })
	}
	going.Wait()
	if err := ctx.Err(); err != nil {
		return measure.Result{}, r.abandon(err)
	}
	r.collect(ctx)
	r.addAgentsCPU(before, r.cpu(ctx))
	return r.finish(), ctx.Err()
}

// Close ends the agents and the processes that they started.
func (f *Fleet) Close() error {
	var errs []error
	for host, a := range f.agents {
		if err := a.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close agent of %s: %w", host, err))
		}
	}
	return errors.Join(errs...)
}

// plan checks the parts and finds the pairs of hosts of each.
func (r *round) plan(parts []Spec) error {
	for _, s := range parts {
		if err := s.Check(); err != nil {
			return fmt.Errorf("%s: %w", s.group(), err)
		}
		if err := s.programs(); err != nil {
			return fmt.Errorf("%s: %w", s.group(), err)
		}
		from, err := r.hosts(cmp.Or(s.From, "senders"))
		if err != nil {
			return fmt.Errorf("%s: from: %w", s.group(), err)
		}
		to, err := r.hosts(cmp.Or(s.To, "receivers"))
		if err != nil {
			return fmt.Errorf("%s: to: %w", s.group(), err)
		}
		if s.Paths > 1 && len(to) > 1 {
			return fmt.Errorf("%s: to: one host has all the paths, not %d", s.group(), len(to))
		}
		for i, h := range from {
			l := &hostPair{round: r, Spec: s, number: len(r.hostPairs), pair: i, from: h, to: to[i%len(to)]}
			if l.from == l.to {
				return fmt.Errorf("%s: to: %s has no traffic with itself", s.group(), h.Name)
			}
			r.hostPairs = append(r.hostPairs, l)
		}
	}
	return nil
}

// hosts finds the hosts that a part is from or to.
func (f *Fleet) hosts(name string) ([]*topology.Host, error) {
	switch name {
	case "senders":
		return f.layout.Senders, nil
	case "receivers":
		return f.layout.Receivers, nil
	}
	if f.agents[name] == nil {
		return nil, fmt.Errorf("%q is neither a sender nor a receiver", name)
	}
	return []*topology.Host{f.layout.Hosts[name]}, nil
}

// open starts the servers, new ones for each round, so that a subject's settings apply to
// listening sockets as well.
func (r *round) open(ctx context.Context) error {
	for host, a := range r.agents {
		for _, s := range []load.ListenSpec{
			{Network: "tcp4", Address: fmt.Sprintf("0.0.0.0:%d", loadPort)},
			{Network: "tcp6", Address: fmt.Sprintf("[::]:%d", loadPort)},
		} {
			if _, err := a.Listen(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", host, err)
			}
		}
	}
	return nil
}

// grace is how long a server waits for the end of connections that its clients have closed.
// It is enough for a path of 200 ms that loses a FIN and its first retransmit.
const grace = 3 * time.Second

// collect ends the servers and takes their accounts.
func (r *round) collect(ctx context.Context) {
	var each sync.WaitGroup
	for host, a := range r.agents {
		each.Go(func() {
			accounts, err := a.Collect(ctx, grace)
			if err != nil {
				r.fail(fmt.Errorf("take accounts of %s: %w", host, err))
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			for n, a := range accounts {
				r.accounts[n] = a
			}
		})
	}
	each.Wait()
}

// abandon ends the servers of a round that cannot be finished because of err.
func (r *round) abandon(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, a := range r.agents {
		a.Collect(ctx, 0) // nothing to end at an agent that is gone
	}
	return err
}

// programs checks that the other programs that a part needs are installed.
func (s Spec) programs() error {
	needed := map[Kind][]string{Iperf3: {"iperf3"}, Wrk: {"wrk", "nginx"}, Web: {"nginx"}}[s.Kind]
	if s.Client == Curl {
		needed = append(needed, "curl")
	}
	for _, name := range needed {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("find %s: install the package %s: %w", name, name, err)
		}
	}
	return nil
}
