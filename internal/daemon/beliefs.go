package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/store"
)

// saveBatch bounds the beliefs of one transaction.
const saveBatch = 4096

// remember gives the engine back what the store kept.
func (d *Daemon) remember() error {
	kept, unwanted := 0, 0
	err := d.store.Load(func(r store.Record) error {
		var m engine.Memory
		if err := json.Unmarshal(r.Belief, &m); err != nil {
			unwanted++ // another version's; written over when the path is used
			return nil
		}
		m.Rule, m.Prefix = r.Rule, r.Prefix
		if d.engine.Remember(m) {
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
		d.log.Info("learned paths taken back", "paths", kept, "not_wanted", unwanted)
	}
	return nil
}

// saveBeliefs writes what changed at every interval, and once more at the end.
func (d *Daemon) saveBeliefs(ctx context.Context) error {
	t := time.NewTicker(d.cfg.Load().Learning.SaveInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			d.save()
			return nil
		case <-t.C:
			d.save()
		}
	}
}

func (d *Daemon) save() {
	for more := true; more; {
		var changed, forgotten []engine.Memory
		changed, forgotten, more = d.engine.Unsaved(saveBatch)
		err := d.store.Save(records(changed), keys(forgotten))
		d.engine.Saved(time.Now(), err)
		if err != nil {
			d.log.Error("what was learned could not be saved", "error", err)
			return
		}
	}
}

func records(ms []engine.Memory) []store.Record {
	out := make([]store.Record, 0, len(ms))
	for i := range ms {
		b, err := json.Marshal(&ms[i])
		if err != nil {
			continue // a NaN, which a belief never holds
		}
		out = append(out, store.Record{Rule: ms[i].Rule, Prefix: ms[i].Prefix, Belief: b, Last: ms[i].LastUsed})
	}
	return out
}

func keys(ms []engine.Memory) []store.Key {
	out := make([]store.Key, 0, len(ms))
	for i := range ms {
		out = append(out, store.Key{Rule: ms[i].Rule, Prefix: ms[i].Prefix})
	}
	return out
}
