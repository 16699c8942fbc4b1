package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
)

// Everything is written to the sink here. Decisions are made under Engine.mu
// and written without it, so that samples do not wait for the kernel. The writer holds
// Engine.writing from the decision until the result of the write is recorded.

// writer is the batch that is written.
type writer struct {
	batch   []path.Entry
	batched []*node // their nodes
}

// Start puts the first rules into force, with the beliefs of earlier processes: load calls
// keep for each stored one. Policies are written to the kernel before the rules, so that
// connections never see rules without policies when one daemon replaces another. After an
// error the engine cannot be used. SetRules calls load again for rules that come back.
func (e *Engine) Start(rules []policy.Rule, r policy.Resolver, load func(keep func(StoredPath) bool) error, now int64) error {
	found := lookUp(rules, r)
	e.writing.Lock()
	defer e.writing.Unlock()
	e.load = load
	p, err := e.begin(rules, found, now)
	if err != nil {
		return err
	}
	if err := e.settle(now, true); err != nil {
		return fmt.Errorf("write first policies: %w", err)
	}
	return e.opt.Sink.WriteRules(p.table)
}

// SetRules replaces the rules in force. A rule that keeps its name keeps what was learned
// for it, unless its objective or scope changed; one that comes back has what was stored of it. On an
// error all the old rules stay in force.
func (e *Engine) SetRules(rules []policy.Rule, r policy.Resolver, now int64) error {
	return e.setRules(rules, r, now, false)
}

// SetVariants is SetRules for the same configuration with other variants of its rules
// (policy.WithPodControls): rollouts that were changed since it was loaded stay.
func (e *Engine) SetVariants(rules []policy.Rule, r policy.Resolver, now int64) error {
	return e.setRules(rules, r, now, true)
}

func (e *Engine) setRules(rules []policy.Rule, r policy.Resolver, now int64, keepRollouts bool) error {
	found := lookUp(rules, r)
	e.writing.Lock()
	defer e.writing.Unlock()
	p, err := e.prepare(rules, found, now)
	if err != nil {
		return err
	}
	if err := e.write(p); err != nil {
		e.abandon(p)
		return err
	}
	var back []StoredPath
	if !keepRollouts { // of variants, which come and go more often, only what absent has is kept
		back = e.storedOf(p.comeBack())
	}
	e.putIntoForce(p, keepRollouts, back, now)
	_ = e.settle(now, true) // counted, logged, and tried again
	return nil
}

// write writes the policies of new roots, then the rules: a class must not be in the
// kernel before the policy of its root.
func (e *Engine) write(p *plan) error {
	if err := e.opt.Sink.WritePolicies(p.rows); err != nil {
		return fmt.Errorf("write policies of rules: %w", err)
	}
	return e.opt.Sink.WriteRules(p.table)
}

// Recompile looks up cgroups, namespaces and pods again, and writes the rules again
// if the ids changed.
func (e *Engine) Recompile(r policy.Resolver) error {
	rules := e.Rules()
	found := lookUp(rules, r) // system calls: not under a lock
	e.writing.Lock()
	defer e.writing.Unlock()
	e.mu.Lock()
	table, waiting, err := e.rules.recompile(rules, found)
	e.mu.Unlock()
	if err != nil || table == nil {
		return err
	}
	if err := e.opt.Sink.WriteRules(table); err != nil {
		return err
	}
	e.log.Info("rules follow cgroups, network namespaces and pods", "waiting", len(waiting))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rules.table, e.rules.waiting, e.rules.names = table, waiting, found
	return nil
}

// settle decides on the marked paths and writes their policies, a batch at a time. The
// caller holds e.writing, and not e.mu.
func (e *Engine) settle(now int64, all bool) error {
	var begun time.Time
	if e.opt.Clock != nil { // only for measurement; no decision depends on it
		begun = e.opt.Clock()
	}
	e.mu.Lock()
	e.renew(now)
	e.updateCopies(now)
	round := e.queue.begin(now)
	e.mu.Unlock()
	var err error
	for more := true; more && err == nil; {
		more, err = e.writeSome(now, all)
	}
	err = errors.Join(err, e.deleteRemoved())

	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue.end(round)
	e.noteWriting(now, err)
	e.totals.Ticks++
	if e.opt.Clock != nil {
		e.totals.TickTime += e.opt.Clock().Sub(begun)
	}
	return err
}

// writeSome decides on the paths of one batch and writes it; more says that others wait.
// If the write fails, the paths are marked again.
func (e *Engine) writeSome(now int64, all bool) (more bool, err error) {
	e.mu.Lock()
	e.decideSome(now, all)
	e.mu.Unlock()
	if len(e.writer.batch) == 0 {
		return false, nil
	}
	more = len(e.writer.batch) == writeBatch
	err = e.opt.Sink.WritePolicies(e.writer.batch)

	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.totals.WriteErrors += uint64(len(e.writer.batch))
		for i, n := range e.writer.batched {
			n.expires = 0 // some rows may have been written: keep id, so that they can be deleted
			n.policy.followAll = n.policy.followAll && !e.writer.batch[i].Adopt
			e.queue.mark(n)
		}
	} else {
		e.totals.Writes += uint64(len(e.writer.batch))
	}
	clear(e.writer.batched)
	e.writer.batch, e.writer.batched = e.writer.batch[:0], e.writer.batched[:0]
	return more, err
}

// deleteRemoved deletes the rows of dropped paths, unless they have been created again.
func (e *Engine) deleteRemoved() error {
	e.mu.Lock()
	removed, adopt := e.rows.removed, e.rows.adopt // paths may be appended during the write
	e.rows.adopt = false
	var keys []path.Key
	for _, k := range removed {
		if n := e.nodes[k]; n == nil || n.id == 0 {
			keys = append(keys, k.path())
		}
	}
	e.mu.Unlock()
	if len(removed) == 0 {
		return nil
	}
	err := e.opt.Sink.DeletePolicies(keys, adopt)

	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.totals.WriteErrors += uint64(len(keys))
		e.rows.adopt = e.rows.adopt || adopt
		return err
	}
	e.rows.removed = append(e.rows.removed[:0], e.rows.removed[len(removed):]...)
	return nil
}

// noteWriting logs when writes begin to fail and when they work again; failures in between
// are only counted.
func (e *Engine) noteWriting(now int64, err error) {
	switch {
	case err != nil && e.rows.retryAt == 0:
		e.log.Error("cannot write policies, trying again every second", "error", err)
	case err == nil && e.rows.retryAt != 0:
		e.log.Info("policies can be written again")
	}
	e.rows.retryAt = 0
	if err != nil {
		e.rows.retryAt = now + retryPause
	}
}
