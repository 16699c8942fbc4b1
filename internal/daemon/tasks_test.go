package daemon

import (
	"runtime"
	"testing"
	"time"
)

func TestFreerCollectsTwiceAfterEachSnapshot(t *testing.T) {
	forced := func() int {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.NumForcedGC)
	}
	var f freer
	at := time.Now()
	for _, step := range []struct {
		after       time.Duration
		dropped     bool
		collections int
	}{
		{0, false, 0},
		{tickInterval, true, 1},
		{tickInterval, false, 1},
		{tickInterval, false, 0},
		{tickInterval, true, 0}, // within a minute: later
		{tickInterval, false, 0},
		{freeInterval, false, 1},
		{tickInterval, false, 1},
		{tickInterval, false, 0},
	} {
		at = at.Add(step.after)
		before := forced()
		f.tick(at, step.dropped)
		if n := forced() - before; n != step.collections {
			t.Errorf("%v: %d collections, not %d", step, n, step.collections)
		}
	}
}
