package daemon

import (
	"os"
	"testing"
)

// In the recording, paths differ, change, and lose packets: no reason for a guard to act.
func TestGuardsDoNotActOnTheRecording(t *testing.T) {
	data, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	for _, learner := range []string{"thompson", "epsilon-greedy"} {
		for guard, n := range replayUnder(t, recordedConfig, data, learner).Totals.Retired {
			if n != 0 {
				t.Errorf("%s: %s acted %d times", learner, guard, n)
			}
		}
	}
}
