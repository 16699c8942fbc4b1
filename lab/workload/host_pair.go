package workload

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/measure"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// hostPair is the traffic of a part between two hosts.
type hostPair struct {
	*round
	Spec
	number   int // among the round's hostPairs, from 0
	pair     int // among the part's
	from, to *topology.Host
}

// run makes the traffic of the pair.
func (l *hostPair) run(ctx context.Context) {
	if !load.Pause(ctx, l.Start) {
		return
	}
	switch l.Kind {
	case Bulk:
		l.each(ctx, l.bulk)
	case RPC:
		l.each(ctx, l.rpc)
	case Mux:
		l.each(ctx, l.mux)
	case Flows:
		l.transfers(ctx)
	case Churn:
		l.churn(ctx)
	case Iperf3:
		l.iperf3(ctx)
	case Wrk:
		l.wrk(ctx)
	case Web:
		l.web(ctx)
	}
}

// each runs every stream at the same time.
func (l *hostPair) each(ctx context.Context, stream func(context.Context, int)) {
	var going sync.WaitGroup
	for n := range l.streams() {
		going.Go(func() { stream(ctx, n) })
	}
	going.Wait()
}

func (l *hostPair) address(h *topology.Host) string {
	return netip.AddrPortFrom(l.layout.Addr(h, l.IPv6), loadPort).String()
}

// connection begins a record. With reverse, the data flows from the host to to the host
// from.
func (l *hostPair) connection(reverse bool) measure.Connection {
	c := measure.Connection{Group: l.group(), From: l.from.Name, To: l.to.Name}
	if reverse {
		c.From, c.To = c.To, c.From
	}
	return c
}

// bulk makes one sequence of connections, one after the other.
func (l *hostPair) bulk(ctx context.Context, _ int) {
	s := load.BulkSpec{To: l.address(l.to), Duration: l.Duration, CC: l.CC, Sample: l.Sample, Drain: drain}
	if l.End > 0 {
		s.End = l.begin.Add(l.End)
	}
	for range max(l.Count, 1) {
		if s.End > 0 && load.Now() >= s.End {
			return
		}
		b, err := l.agents[l.from.Name].Bulk(ctx, s)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.fail(err)
		}
		if b.Connect == 0 {
			load.Pause(ctx, time.Millisecond) // a server that has ended refuses at once
			continue
		}
		c := l.connection(false)
		c.Start, c.Elapsed = l.at(b.Begin), b.Connect+b.Took
		c.Bytes, c.Delivered = b.Arrived, err == nil && !b.CutOff
		l.add(entry{Connection: c, own: &b.Account})
		l.sum(c, 0)
	}
}

// drain is how long a bulk connection's last bytes may be in flight before it is aborted,
// so that they do not disturb the next round: the time of 4 MB, the default maximum of the
// send buffer (tcp_wmem), at 10 Mbit/s.
const drain = 4 * time.Second

func (l *hostPair) rpc(ctx context.Context, _ int) {
	s := load.RPCSpec{To: l.address(l.to), CC: l.CC, Account: l.block(), Request: l.request(), Reply: l.reply(),
		Count: l.times(0), Duration: l.bound(), Think: l.Think, Sample: l.Sample}
	r, err := l.agents[l.from.Name].RPC(ctx, s)
	l.recordRequests(ctx, r, err, s.Reply >= s.Request)
}

func (l *hostPair) mux(ctx context.Context, stream int) {
	s := load.MuxSpec{To: l.address(l.from), CC: l.CC, Account: l.block(), Request: l.request(),
		Concurrency: l.places(), Count: l.times(0), Duration: l.bound(), Think: l.Think, Sample: l.Sample}
	sizes := cycle
	if s.Count > 0 {
		sizes = min(sizes, s.Count*s.Concurrency)
	}
	s.Sizes = l.sizes(l.pair*MaxStreams+stream, sizes)
	r, err := l.agents[l.to.Name].Mux(ctx, s)
	l.recordRequests(ctx, r, err, false)
}

// recordRequests records a connection with many requests.
func (l *hostPair) recordRequests(ctx context.Context, r load.RPCResult, err error, reverse bool) {
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		l.fail(err)
		return
	}
	l.sum(l.client(r.Connection, r.Kept, reverse), r.Exchanges)
}

// client records a connection as its client saw it.
func (l *hostPair) client(r load.Connection, exchanges []load.Exchange, reverse bool) measure.Connection {
	c := l.connection(reverse)
	if r.Error != "" {
		l.failed(1, r.Error)
	}
	if r.Connect == 0 {
		return c
	}
	c.Start, c.Elapsed, c.Bytes, c.Delivered = l.at(r.Begin), r.Elapsed, r.Bytes, r.Delivered
	l.add(entry{Connection: c, account: r.Account, own: r.Own, exchanges: exchanges, deadline: l.Deadline})
	return c
}

// sum adds a connection and its completed requests to the part's totals.
func (l *hostPair) sum(c measure.Connection, requests uint64) {
	t := measure.Total{Requests: requests, Bytes: c.Bytes}
	if c.Delivered {
		t.Connections = 1
	}
	l.total(l.group(), t)
}

func (l *hostPair) transfers(ctx context.Context) {
	s := load.FlowsSpec{To: l.address(l.from), CC: l.CC, Account: l.block(), Flows: l.flows(l.pair),
		Gap: l.Gap, Duration: l.bound(), Sample: l.Sample}
	if !l.openLoop() {
		s.Concurrency, s.Repeat = l.places(), l.endless()
	}
	if len(s.Flows) == 0 {
		return // by chance, none begins in so short a time
	}
	r, err := l.agents[l.to.Name].Flows(ctx, s)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		l.fail(err)
	}
	for _, c := range r.Connections {
		var done []load.Exchange
		if c.Delivered {
			done = []load.Exchange{{Begin: c.Begin, Elapsed: c.Elapsed, Bytes: c.Bytes}}
		}
		l.sum(l.client(c, done, false), uint64(len(done)))
	}
}

// keep is how many connections of churn are recorded one by one.
const keep = 10_000

func (l *hostPair) churn(ctx context.Context) {
	s := load.ChurnSpec{To: l.servers(), CC: l.CC, Duration: l.bound(), Count: l.Count, Rate: l.Rate,
		Workers: l.streams(), Request: l.request(), Reply: l.reply(), Keep: keep, Account: l.block()}
	reverse := s.Reply >= s.Request
	if reverse {
		s.CC, s.ServerCC = "", l.CC
	}
	begin := load.Now()
	r, err := l.agents[l.from.Name].Churn(ctx, s)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		l.fail(err)
	}
	if r.Errors > 0 {
		l.failed(r.Errors, r.FirstError)
	}
	for _, c := range r.Kept {
		l.client(c, []load.Exchange{{Begin: c.Begin, Elapsed: c.Elapsed, Bytes: c.Bytes}}, reverse)
	}
	t := measure.Total{Connections: r.Connections, Requests: r.Connections,
		Bytes: r.Connections * uint64(max(s.Request, s.Reply)), Begin: l.at(begin), End: l.at(begin) + r.Elapsed}
	l.total(l.group(), t)
	l.until(t.End)
}

// servers are the addresses that churn connects to.
func (l *hostPair) servers() []string {
	if l.Paths <= 1 {
		return []string{l.address(l.to)}
	}
	all := make([]string, l.Paths)
	for i := range all {
		all[i] = netip.AddrPortFrom(topology.SpreadAddr(i, l.IPv6), loadPort).String()
	}
	return all
}
