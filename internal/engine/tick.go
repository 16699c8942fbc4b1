package engine

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// renewPerTick bounds the policies that one tick looks at only since time has
// passed.
const renewPerTick = 500

// Tick decides on every path of which something changed, renews what is about to
// expire, and writes the difference. now is in Unix nanoseconds.
func (e *Engine) Tick(now int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.dirty) == 0 && len(e.removed) == 0 && !e.due(now) {
		return
	}
	e.settle(now)
}

// due reports whether a policy wants renewal: half of its time is over.
func (e *Engine) due(now int64) bool {
	front := e.byWrite.Front()
	return front != nil && front.Value.(*node).expires-now < int64(e.opt.TTL)/2
}

func (e *Engine) settle(now int64) {
	start := time.Now() // only to measure the tick; no decision depends on it
	for i := 0; i < renewPerTick && e.due(now); i++ {
		n := e.byWrite.Front().Value.(*node)
		e.byWrite.Remove(n.written)
		n.written = nil
		n.expires = 0
		e.mark(n)
	}
	entries := e.scratch[:0]
	nodes := e.dirty
	for _, n := range nodes {
		if e.nodes[n.key] != n {
			continue // forgotten since
		}
		n.dirty = false
		if en, write := e.decide(n, now); write {
			entries = append(entries, en)
		}
	}
	clear(nodes)
	e.dirty = nodes[:0]
	e.write(entries)
	e.scratch = entries[:0]
	e.totals.Ticks++
	e.totals.TickSeconds += time.Since(start).Seconds()
}

func (e *Engine) write(entries []path.Entry) {
	if err := e.opt.Sink.WritePolicies(entries); err != nil {
		e.totals.WriteErrors += uint64(len(entries))
		e.log.Error("policies were not written", "count", len(entries), "error", err)
		for i := range entries { // tried again at the next tick
			if n := e.nodes[entries[i].Key]; n != nil {
				n.id = 0
				e.mark(n)
			}
		}
	} else {
		e.totals.Writes += uint64(len(entries))
	}
	if len(e.removed) == 0 {
		return
	}
	if err := e.opt.Sink.DeletePolicies(e.removed); err != nil {
		e.totals.WriteErrors += uint64(len(e.removed))
		e.log.Error("policies were not deleted", "count", len(e.removed), "error", err)
		return
	}
	e.removed = e.removed[:0]
}

// decide returns the row to write for n; write is false if what the kernel has
// is right and fresh enough.
func (e *Engine) decide(n *node, now int64) (en path.Entry, write bool) {
	if n.rule.rule.Leave {
		return en, false
	}
	d := policy.Decide(e.input(n, now))
	n.reason, n.best = d.Reason, int8(d.Best)
	w := written{arms: d.Policy.Arms, num: d.Policy.NumArms, holdOut: d.Policy.HoldOut, params: hashParams(&d.Policy.Params)}
	if n.id != 0 && w == n.policy && n.expires-now > int64(e.opt.TTL)/2 {
		return en, false
	}
	e.reasons[d.Reason]++
	e.ids++
	n.id, n.policy, n.expires = e.ids, w, now+int64(e.opt.TTL)
	if n.written == nil {
		n.written = e.byWrite.PushBack(n)
	} else {
		e.byWrite.MoveToBack(n.written)
	}
	return path.Entry{Key: n.key, ID: n.id, Expires: n.expires, Policy: d.Policy}, true
}

// input collects what a decision about n is made from.
func (e *Engine) input(n *node, now int64) *policy.Input {
	in := &e.in
	in.Rule = n.rule.rule
	in.Arms = e.armsFor(n)
	in.Retired = e.retired
	in.Belief = &n.belief
	in.Parent = nil
	for up := n.parent; up != nil && in.Parent == nil; up = up.parent {
		if up.belief.Count > 0 { // the nearest that knows anything
			in.Parent = &up.belief
		}
	}
	in.Now = now
	in.YieldCC, in.YieldFields = e.yieldCC, e.yieldFs
	return in
}

// hashParams stamps the fixed fields: they are the rule's, and a path only needs
// to know whether they changed.
func hashParams(p *tcp.Params) uint64 {
	if p.Mask() == 0 {
		return 0
	}
	h := fnv.New64a()
	var b [8]byte
	for _, f := range p.Fields() {
		v, _ := p.Get(f)
		binary.LittleEndian.PutUint64(b[:], v)
		h.Write([]byte{byte(f)})
		h.Write(b[:])
	}
	return h.Sum64()
}
