package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// If a rule says so (switch), the running connections of a path get a much better arm. One in 16 keeps its own, by a hash of
// its cookie. Here it is compared what becomes of both. If those that were switched are significantly worse, no more
// are switched for a time.
//
// Both run beside each other, so that the comparison is biased: an arm that takes capacity from others looks better than it is, and one
// that yields looks worse. So it is no evidence for an arm. It may stop switches, because the connections then
// keep what they have.

const (
	// mostRunning bounds the connections of a group, and so the memory of a path.
	mostRunning = 16
	// runningMemory is the time in nanoseconds after which a decision to switch is another one than the last.
	runningMemory = int64(10 * time.Minute)
)

// running is the comparison since a path's policy began to switch running connections.
type running struct {
	to             tcp.CC
	since, latest  int64 // Unix ns: of the first and the latest sample while the policy asked for it
	switched, kept []runningConn
	stopped        StoredLeftToDefault
}

// runningConn is one connection. Its first sample is not counted, because it may begin before the switch.
type runningConn struct {
	cookie         uint64
	reward, weight float64 // mean of its samples, and its weight
	bytes, seconds float64 // acknowledged, and the time for that
	sent, again    float64 // data packets
}

// StoredSwitching is what is kept of running across restarts.
type StoredSwitching struct {
	To                  tcp.CC `json:"to"` // the arm that running connections get, or got
	StoredLeftToDefault        // when they keep theirs because it did harm, and why
	// The comparison; absent in records of earlier versions.
	Begun    int64           `json:"begun_ns,omitempty"`  // Unix ns: of the first sample
	Latest   int64           `json:"latest_ns,omitempty"` // Unix ns: of the latest one
	Switched []StoredRunning `json:"switched,omitempty"`
	Kept     []StoredRunning `json:"kept,omitempty"`
}

// StoredRunning is one connection of the comparison. It has no cookie: its later samples, if there are any, are of rules that are not in
// force any more.
type StoredRunning struct {
	Reward  float64 `json:"reward"`
	Weight  float64 `json:"weight"`
	Bytes   float64 `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Sent    float64 `json:"sent_packets"`
	Again   float64 `json:"retransmitted_packets"`
}

func (r *running) stored() *StoredSwitching {
	if r == nil || r.stopped == (StoredLeftToDefault{}) && len(r.switched)+len(r.kept) == 0 {
		return nil
	}
	return &StoredSwitching{r.to, r.stopped, r.since, r.latest, storedRunning(r.switched), storedRunning(r.kept)}
}

func storedRunning(group []runningConn) (out []StoredRunning) {
	for _, c := range group {
		if c.weight > 0 {
			out = append(out, StoredRunning{c.reward, c.weight, c.bytes, c.seconds, c.sent, c.again})
		}
	}
	return out
}

func (s *StoredSwitching) restored() *running {
	if s == nil {
		return nil
	}
	return &running{to: s.To, since: cmp.Or(s.Begun, s.Since), latest: cmp.Or(s.Latest, s.Since), stopped: s.StoredLeftToDefault,
		switched: restoredRunning(s.Switched), kept: restoredRunning(s.Kept)}
}

func restoredRunning(group []StoredRunning) (out []runningConn) {
	for _, c := range group[:min(len(group), mostRunning)] {
		out = append(out, runningConn{reward: c.Reward, weight: c.Weight, bytes: c.Bytes, seconds: c.Seconds, sent: c.Sent, again: c.Again})
	}
	return out
}

// keepsArm reports whether a connection keeps its arm: keeps_arm in bpf/sockops/switch.bpf.h.
func keepsArm(cookie uint64) bool { return cookie*0x9e3779b97f4a7c15>>60 == 0 }

// compareRunning adds a sample of a connection that was switched, or that could have been.
func (e *Engine) compareRunning(leaf *node, s *tcp.Sample) {
	n := leaf.policyNode()
	if n.policy.switchFrom == 0 || s.Class != n.rule.class || s.Flags&(tcp.FlagHoldOut|tcp.FlagAppCC|tcp.FlagArmFailed|tcp.FlagAdopted) != 0 {
		return
	}
	arms := n.policy.arms.list()
	to := arms[n.policy.switchTo]
	if r := n.running; r == nil || r.to != to || s.At-r.latest > runningMemory {
		n.running = &running{to: to, since: s.At}
		if r != nil {
			n.running.stopped = r.stopped
		}
	}
	r := n.running
	r.latest = learn.Later(r.latest, s.At)
	i := slices.Index(arms, s.Arm)
	var group *[]runningConn
	switch {
	case s.Has(tcp.FlagCCChanged) && s.Arm == to && s.CC == to:
		group = &r.switched
	case !s.Has(tcp.FlagCCChanged) && keepsArm(s.Cookie) && i >= 0 && n.policy.switchFrom&(1<<i) != 0:
		group = &r.kept
	default:
		return
	}
	if c := connOf(group, s.Cookie); c != nil && c.add(n, s) {
		e.saves.add(n)
		if g := r.gain(); g.Worse() {
			e.stopSwitching(n, g, s.At)
		}
	}
}

// connOf finds a connection; nil if it is new, or if there is no room for it.
func connOf(group *[]runningConn, cookie uint64) *runningConn {
	i := slices.IndexFunc(*group, func(c runningConn) bool { return c.cookie == cookie })
	if i >= 0 {
		return &(*group)[i]
	}
	if len(*group) < mostRunning {
		*group = append(*group, runningConn{cookie: cookie})
	}
	return nil
}

// add adds a later sample, and reports whether it says something about the path.
func (c *runningConn) add(n *node, s *tcp.Sample) bool {
	same := *s
	same.Flags &^= tcp.FlagCCChanged // all of the sample is after the switch
	out, why := learn.Reward(n.rule.rule.Learn.Objective, &same, n.belief.MinRTT)
	if why != learn.Scored || !(out.Weight > 0) || math.IsInf(out.Reward, 0) || math.IsNaN(out.Reward) {
		return false
	}
	c.weight += out.Weight
	c.reward += (out.Reward - c.reward) * out.Weight / c.weight
	c.bytes += float64(s.BytesAcked)
	c.seconds += s.Busy.Seconds()
	c.sent += out.Sent
	c.again += out.Again
	return true
}

func rewards(group []runningConn) (out []float64) {
	for i := range group {
		if group[i].weight > 0 {
			out = append(out, group[i].reward)
		}
	}
	return out
}

func (r *running) gain() learn.Gain { return learn.MeanGain(rewards(r.switched), rewards(r.kept)) }

func (r *running) stoppedAt(now int64) bool { return r != nil && r.stopped.inForce(now) }

// stopSwitching lets the running connections of a path keep their arms for a time.
func (e *Engine) stopSwitching(n *node, g learn.Gain, now int64) {
	last := n.running.stopped
	why := fmt.Sprintf("connections that got %s did %.2f times as well as those that kept their arm (95 %%: %.2f to %.2f), over %.0f and %.0f of them",
		n.running.to, g.Ratio, g.Low, g.High, g.Treated, g.HeldOut)
	length := guard.Length(last.Until-last.Since, now-last.Until)
	n.running = &running{to: n.running.to, since: now, latest: now, stopped: StoredLeftToDefault{Why: why, Since: now, Until: now + length}}
	e.retirements[guard.SwitchedWorse]++
	e.log.Warn("running connections keep their arms", "cc", n.running.to, "rule", n.rule.rule.Name, "path", n.key.path().Prefix,
		"reason", guard.SwitchedWorse, "why", why, "for", time.Duration(length))
	e.saves.add(n)
	e.queue.markUrgent(n)
}

func (r *running) view(now time.Time) *Switched {
	if r == nil {
		return nil
	}
	out := &Switched{To: r.to, Since: time.Unix(0, r.since), Switched: viewRunning(r.switched), Kept: viewRunning(r.kept), Gain: r.gain()}
	if r.stoppedAt(now.UnixNano()) {
		out.Stopped = &LeftToDefault{Why: r.stopped.Why, Since: time.Unix(0, r.stopped.Since), Until: time.Unix(0, r.stopped.Until)}
	}
	return out
}

func viewRunning(group []runningConn) (out RunningGroup) {
	var logs, rates, sent, again float64
	for i := range group {
		c := &group[i]
		if c.weight == 0 {
			continue
		}
		out.Connections++
		sent, again = sent+c.sent, again+c.again
		if c.bytes > 0 && c.seconds > 0 {
			rates++
			logs += math.Log(c.bytes / c.seconds)
		}
	}
	if rates > 0 {
		out.Goodput = uint64(math.Round(math.Exp(logs / rates)))
	}
	if sent > 0 {
		out.Retrans = again / sent
	}
	return out
}
