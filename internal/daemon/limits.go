package daemon

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/limit"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/policy"
)

const (
	// limitInterval is how often limits are divided, if there are any. A connection that begins, or sends again, in
	// between gets its share from programs, within a round trip.
	limitInterval = 250 * time.Millisecond
	// limitBudget is the part of one CPU, as 1/limitBudget, that this may take.
	limitBudget = 50
	// limitFollow is the least time between two walks for connections that do not notice their share.
	limitFollow = 5 * time.Second
)

// rateLimits divides rate limits among connections.
type rateLimits struct {
	writing sync.Mutex
	inForce map[uint64]limit.Limit // of rules and pods, as last written; writing protects it
	failed  bool                   // some were not written; writing protects it
	changed chan struct{}          // other connections are under limits now
	latest  atomic.Pointer[limit.Result]
}

// limitsOf are the rate limits of the rules, by their keys. In mode observe there are none.
func limitsOf(cfg *config.Config) map[uint64]limit.Limit {
	limits := map[uint64]limit.Limit{}
	for i := range cfg.Rules {
		if r := &cfg.Rules[i]; r.LimitKey() != 0 && cfg.Mode != engine.ModeObserve {
			limits[r.LimitKey()] = limit.Limit{Rate: r.Limit.Total, Connection: r.Limit.Connection}
		}
	}
	return limits
}

// divideLimits divides rate limits again and again, according to what connections send.
func (d *Daemon) divideLimits(ctx context.Context) error {
	list, err := host.NewNetNSList()
	if err != nil {
		return err
	}
	defer list.Close()
	conns := limitedConns{d: d, netns: list}
	var div limit.Divider
	var followed, again time.Time // again: when to walk once more
	for {
		start, wait, behind := time.Now(), tickInterval, false
		if len(d.dp.Limits()) == 0 {
			d.limits.latest.Store(nil)
		} else {
			conns.search()
			used := cpuTime()
			if behind, err = d.divideOnce(&div, &conns); err != nil {
				return err
			}
			wait = max(limitInterval, (cpuTime()-used)*limitBudget)
		}
		if behind && time.Since(followed) >= limitFollow || !again.IsZero() && time.Now().After(again) {
			d.followLimits(list)
			followed, again = time.Now(), time.Time{}
		}
		// Together with other periodic work.
		t := time.NewTimer(time.Until(start.Truncate(wait).Add(wait)))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		case <-d.limits.changed:
			t.Stop()
			conns.next = time.Time{}
			d.followLimits(list)
			again = time.Now().Add(limitFollow) // then those whose handshake is not over yet
		}
	}
}

// divideOnce divides all limits, and reports whether some connections do not follow.
func (d *Daemon) divideOnce(div *limit.Divider, under *limitedConns) (behind bool, err error) {
	limits := d.dp.Limits()
	d.addOffered(limits)
	conns, err := under.list(limits)
	if err != nil {
		d.log.Debug("connections under rate limits not listed", "error", err)
		return false, nil
	}
	r := div.Divide(datapath.Monotonic(), limits, conns)
	d.limits.latest.Store(&r)
	return r.Behind > 0, d.dp.WriteShares(&r)
}

// followLimits brings the connections of all network namespaces in line with the present limits.
func (d *Daemon) followLimits(list *host.NetNSList) {
	if _, err := d.inAll(list, d.dp.FollowLimits); err != nil {
		d.log.Warn("running connections follow rate limits when they send next", "error", err)
	}
}

// limitCounts is what the rate limits of rules do now.
func (d *Daemon) limitCounts() (list []metrics.LimitCount) {
	cfg := d.cfg.Load()
	for i := range cfg.Rules {
		if n, _, ok := d.limitCount(cfg, &cfg.Rules[i]); ok {
			list = append(list, n)
		}
	}
	return list
}

// limitCount is what the rate limit of a rule does now; false: the rule has none in force.
func (d *Daemon) limitCount(cfg *config.Config, rule *policy.Rule) (n metrics.LimitCount, s limit.State, ok bool) {
	key := rule.LimitKey()
	if key == 0 || cfg.Mode == engine.ModeObserve {
		return n, s, false
	}
	n = metrics.LimitCount{Rule: rule.Name, Total: rule.Limit.Total, Connection: rule.Limit.Connection}
	return n, d.countLimit(key, &n), true
}

// staysInside reports whether packets of c do not leave its network namespace, whose limit it then is not under (limit_of_netns
// in bpf/sockops/limits.bpf.h). Without a local address, it is the same as the remote one if that is the pod's.
func (d *Daemon) staysInside(c *class.Conn) bool {
	if c.Remote.IsLoopback() || c.Local.IsLoopback() || c.Remote == c.Local {
		return true
	}
	p := d.pods.now().ByCookie(c.NetNS)
	return !c.Local.IsValid() && p != nil && slices.ContainsFunc(p.Addresses, func(a netip.Prefix) bool { return a.Addr() == c.Remote })
}

// countLimit fills in what the limit of a key does now, and returns it.
func (d *Daemon) countLimit(key uint64, n *metrics.LimitCount) (s limit.State) {
	if r := d.limits.latest.Load(); r != nil {
		s = r.Limits[key]
		n.Connections, n.Active, n.Share, n.Measured, n.Sent = s.Connections, s.Active, s.Level, s.Measured, s.Sent
	}
	return s
}

// explainLimit is what the limit of a rule ("" is none), or else of the pod, would give to one more
// connection; nil if there is none.
func (d *Daemon) explainLimit(rule string, c *class.Conn) *api.RateLimit {
	cfg := d.cfg.Load()
	if r := ruleNamed(d.engine.Rules(), rule); r != nil {
		rule = cmp.Or(r.Of, rule) // a variant is under the limit of its rule
	}
	var n metrics.LimitCount
	var s limit.State
	of, ok := "rule", false
	if r := ruleNamed(cfg.Rules, rule); r != nil {
		n, s, ok = d.limitCount(cfg, r)
	}
	if !ok && !d.staysInside(c) {
		var l limit.Limit
		l, ok = egressLimits(d.bandwidths())[c.NetNS]
		n.Total, of = l.Rate, "pod"
		s = d.countLimit(c.NetNS, &n)
	}
	if !ok {
		return nil
	}
	x := &api.RateLimit{LimitCount: n, New: n.Connection}
	if left := uint64(s.Left()); left >= n.Total/100 {
		x.Left = left
	}
	if n.Total != 0 {
		x.New = uint64(float64(n.Total) / (s.Base + 1))
		if n.Connection != 0 {
			x.New = min(x.New, n.Connection)
		}
	}
	switch {
	case n.Total == 0:
		x.Why = "the rule limits each connection"
	case n.Active == 0:
		x.Why = "no connection of the " + of + " sends now: the first gets all"
		if x.Left > 0 {
			x.Why += " but what is left to other traffic"
		}
	case n.Share == 0:
		x.Why = "no active connection is held back: a new one gets its fair share of what they leave, among " + console.Plural(n.Active, "active connection")
	default:
		x.Why = "shared with " + console.Plural(n.Active, "active connection") + ", each of which gets what it needs, but not more than its fair share"
	}
	return x
}
