package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
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

func (d *Daemon) save() {
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
