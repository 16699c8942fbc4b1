package workload

import (
	"context"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/measure"
)

// webFile is what nginx serves, as a path of a URL.
const webFile = "/file"

// web runs nginx at the sender and a client at the receiver, which makes the part's
// requests.
func (l *hostPair) web(ctx context.Context) {
	if err := l.webOnce(ctx); err != nil && ctx.Err() == nil {
		l.fail(err)
	}
}

func (l *hostPair) webOnce(ctx context.Context) error {
	_, at, stop, err := l.nginx(ctx)
	if err != nil {
		return err
	}
	defer stop()
	accounts, err := newSocketMonitor(l.from, int(at.Port()))
	if err != nil {
		return err
	}
	defer accounts.close()
	get := l.webGo
	if l.Client == Curl {
		get = l.webCurl
	}
	list, err := get(ctx, at.String())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// The last FIN may be lost, so that the account comes late (see grace).
	deadline := time.Now().Add(grace)
	for i, c := range list {
		if a, ok := accounts.account(ctx, c.Port, deadline); ok {
			c.Own = &a
		}
		l.webRequest(i, c)
	}
	return err
}

// webGo lets the load agent make the requests.
func (l *hostPair) webGo(ctx context.Context, at string) ([]load.Connection, error) {
	s := load.FlowsSpec{To: at, HTTP: webFile, Account: l.block(), Duration: l.bound(), Concurrency: l.places()}
	for range l.Count {
		s.Flows = append(s.Flows, load.Flow{Size: uint32(l.Size.Fixed)})
	}
	r, err := l.agents[l.to.Name].Flows(ctx, s)
	return r.Connections, err
}

// webRequest records the connection of the part's i-th request.
func (l *hostPair) webRequest(i int, r load.Connection) {
	c := l.connection(false)
	switch {
	case l.First == 0:
	case i < l.First:
		c.Group += FirstGroup
	default:
		c.Group += LaterGroup
	}
	if r.Error != "" {
		l.failed(1, r.Error)
	}
	if r.Connect == 0 {
		return
	}
	c.Start, c.Elapsed, c.Bytes, c.Delivered = l.at(r.Begin), r.Elapsed, r.Bytes, r.Delivered
	e := entry{Connection: c, own: r.Own}
	t := measure.Total{Bytes: c.Bytes}
	if c.Delivered {
		e.requests = []measure.Request{{Start: c.Start, Elapsed: c.Elapsed, Bytes: c.Bytes}}
		t.Connections, t.Requests = 1, 1
	}
	l.add(e)
	l.total(c.Group, t)
}
