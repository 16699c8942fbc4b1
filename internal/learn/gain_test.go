package learn

import (
	"encoding/json"
	"testing"
)

// A ratio has an interval: that of a few observations says nothing.
func TestNoRatioWithoutInterval(t *testing.T) {
	var c Comparison
	for i := range 2 * leastCompared {
		by := Treated
		if i%2 == 1 {
			by = HoldOutConnection
		}
		c.Add(Outcome{At: int64(i), Reward: 1 + float64(i%2), Weight: 1}, by)
		g := c.Gain()
		if enough := i == 2*leastCompared-1; g.Known() != enough || (g.Ratio != 0) != enough {
			t.Errorf("after %d observations: %+v", i+1, g)
		}
	}
}

func TestGainAsJSON(t *testing.T) {
	for want, g := range map[string]Gain{
		`{"by":"slices","treated":1,"held_out":2}`:                                       {BySlice: true, Treated: 1, HeldOut: 2},
		`{"ratio":1.5,"low":1.2,"high":1.9,"by":"connections","treated":9,"held_out":8}`: {Ratio: 1.5, Low: 1.2, High: 1.9, Treated: 9, HeldOut: 8},
		`{"ratio":1.5,"low":1.2,"high":1.9,"by":"slices","treated":9,"held_out":8}`:      {Ratio: 1.5, Low: 1.2, High: 1.9, BySlice: true, Treated: 9, HeldOut: 8},
	} {
		b, err := json.Marshal(g)
		if err != nil || string(b) != want {
			t.Errorf("%s, %v, want %s", b, err, want)
		}
		var back Gain
		if err := json.Unmarshal(b, &back); err != nil || back != g {
			t.Errorf("%s is read as %+v, %v", b, back, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"by":"both"}`), &Gain{}); err == nil {
		t.Error("by: both is accepted")
	}
}
