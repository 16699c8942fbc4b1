package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/store"
)

// saveBatch bounds the beliefs that are saved at a time, and so the memory for them: a
// belief takes some 3 KB on its way to the file. Each batch writes the whole file anew.
const saveBatch = 2048

// loadBeliefs passes every stored belief to keep, which reports whether a rule uses it.
func (d *Daemon) loadBeliefs(keep func(engine.StoredPath) bool) error {
	kept, unwanted := 0, 0
	err := d.store.Load(func(r store.Record) error {
		var m engine.StoredPath
		if err := json.Unmarshal(r.Belief, &m); err != nil {
			unwanted++ // of another version; overwritten when the path is used
			return nil
		}
		m.PathID = engine.PathID{Rule: r.Rule, Scope: r.Scope, Prefix: r.Prefix}
		if keep(m) {
			kept++
		} else {
			unwanted++
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what was learned: %w", err)
	}
	if kept+unwanted > 0 {
		d.log.Info("learned paths restored", "paths", kept, "not_wanted", unwanted)
	}
	return nil
}

// saveBeliefs writes the changed beliefs at every interval.
func (d *Daemon) saveBeliefs(ctx context.Context) error {
	t := time.NewTicker(d.cfg.Load().Learning.SaveInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil // openEngine's undo saves the rest, after the last sample
		case <-t.C:
			d.save()
		}
	}
}

// keptWithoutRule is for how long after its latest use a record is kept whose rule is not in force any more. The rule may come back: after a
// mistake in the configuration, or with a release that was taken back. After 30 days, nothing is left of beliefs (learning.half_life is hours).
const keptWithoutRule = 30 * 24 * time.Hour

// expired says which records are not to be kept any more. Variants for pods come back with the pods, and are kept with their rules.
func expired(inForce []policy.Rule, now time.Time) func(rule string, last int64) bool {
	names := map[string]bool{"": true} // variants for connections without a rule
	for i := range inForce {
		names[inForce[i].Name] = true
	}
	oldest := now.Add(-keptWithoutRule).UnixNano()
	return func(rule string, last int64) bool {
		of, _ := policy.VariantOf(rule)
		return !names[of] && last < oldest
	}
}

func (d *Daemon) save() {
	d.store.Expire(expired(d.engine.Rules(), time.Now()))
	for more := true; more; {
		var changed []engine.StoredPath
		var forgotten []engine.PathID
		changed, forgotten, more = d.engine.Unsaved(saveBatch)
		err := d.store.Save(records(changed), keys(forgotten))
		d.engine.Saved(time.Now(), err)
		if err != nil {
			d.log.Error("cannot save learned beliefs, trying again later", "error", err)
			return
		}
	}
}

func records(ms []engine.StoredPath) []store.Record {
	out := make([]store.Record, 0, len(ms))
	for i := range ms {
		b, err := json.Marshal(&ms[i])
		if err != nil {
			continue // a NaN, which a belief never contains
		}
		out = append(out, store.Record{Rule: ms[i].Rule, Scope: ms[i].Scope, Prefix: ms[i].Prefix, Belief: b, Last: ms[i].LastUsed})
	}
	return out
}

func keys(places []engine.PathID) []store.Key {
	out := make([]store.Key, 0, len(places))
	for _, p := range places {
		out = append(out, store.Key{Rule: p.Rule, Scope: p.Scope, Prefix: p.Prefix})
	}
	return out
}
