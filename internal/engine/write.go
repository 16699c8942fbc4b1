package engine

import (
	"errors"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
)

// Everything is written to the sink here or in rules.go. Decisions are made under Engine.mu
// and written without it, so that samples do not wait for the kernel. The writer holds
// Engine.writing from the decision until the result of the write is noted.

// settle decides on the marked paths and writes their policies, a batch at a time. The
// caller holds e.writing, and not e.mu.
func (e *Engine) settle(now int64, all bool) error {
	var begun time.Time
	if e.opt.Clock != nil { // only for measurement; no decision depends on it
		begun = e.opt.Clock()
	}
	e.mu.Lock()
	e.beginRound(now)
	round := e.deciding
	e.mu.Unlock()
	var err error
	for more := true; more && err == nil; {
		more, err = e.writeSome(now, all)
	}
	err = errors.Join(err, e.deleteRemoved())

	e.mu.Lock()
	defer e.mu.Unlock()
	e.endRound(round)
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
	if len(e.batch) == 0 {
		return false, nil
	}
	more = len(e.batch) == writeBatch
	err = e.opt.Sink.WritePolicies(e.batch)

	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.totals.WriteErrors += uint64(len(e.batch))
		for _, n := range e.batched {
			n.expires = 0 // some rows may have been written: keep id, so that they can be deleted
			e.mark(n)
		}
	} else {
		e.totals.Writes += uint64(len(e.batch))
	}
	clear(e.batched)
	e.batch, e.batched = e.batch[:0], e.batched[:0]
	return more, err
}

// deleteRemoved deletes the rows of dropped paths, unless they have been created again.
func (e *Engine) deleteRemoved() error {
	e.mu.Lock()
	removed := e.removed // paths may be appended during the write
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
	err := e.opt.Sink.DeletePolicies(keys)

	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.totals.WriteErrors += uint64(len(keys))
		return err
	}
	e.removed = append(e.removed[:0], e.removed[len(removed):]...)
	return nil
}

// noteWriting logs when writes begin to fail and when they work again; failures in between
// are only counted.
func (e *Engine) noteWriting(now int64, err error) {
	switch {
	case err != nil && e.retryAt == 0:
		e.log.Error("cannot write policies, trying again every second", "error", err)
	case err == nil && e.retryAt != 0:
		e.log.Info("policies can be written again")
	}
	e.retryAt = 0
	if err != nil {
		e.retryAt = now + retryPause
	}
}
