package limit

import (
	"math"
	"math/rand/v2"
	"testing"
)

var inf = math.Inf(1)

// Properties of a division, whatever connections need: the shares sum to at most the limit and its
// slack; nobody that wants as much as it can get has less than the fair share; the limit is used up
// if there is need; nobody gets more than its bound.
func TestDivide(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		rate := math.Exp(rnd.Float64()*10 + 8)
		needs, out := make([]need, 1+rnd.IntN(60)), make([]float64, 60)
		var wanted float64
		for i := range needs {
			needs[i] = need{rate * math.Exp(-8*rnd.Float64()), inf}
			if rnd.IntN(3) == 0 {
				needs[i].rate = inf
			}
			if rnd.IntN(4) == 0 {
				needs[i].bound = rate * math.Exp(-6*rnd.Float64())
			}
			wanted += min(needs[i].rate, needs[i].bound)
		}
		level := divide(rate, needs, out)
		var sum, used float64
		for i, n := range needs {
			x := min(n.rate, n.bound)
			sum, used = sum+out[i], used+min(out[i], x)
			if out[i] > n.bound*(1+1e-9) || out[i] < min(x, rate/float64(len(needs)))*(1-1e-9) || out[i] <= 0 {
				t.Fatalf("%g: %+v gets %g of %d connections", rate, n, out[i], len(needs))
			}
			if x < level && out[i] < x*(1-1e-9) {
				t.Fatalf("%g: %+v gets %g, less than it needs, at level %g", rate, n, out[i], level)
			}
		}
		if sum > rate*(1+slack)*(1+1e-9) {
			t.Fatalf("%g: the shares of %+v sum to %g", rate, needs, sum)
		}
		if want := min(rate, wanted); math.Abs(used-want) > 1e-6*want {
			t.Fatalf("%g: %g of it is used, want %g", rate, used, want)
		}
	}
}

// One more connection gets its fair share of what the others leave.
func TestAmong(t *testing.T) {
	for _, c := range []struct {
		needs []need
		want  float64 // share of a limit of 100
	}{
		{nil, 100},
		{[]need{{inf, inf}}, 50},
		{[]need{{inf, inf}, {inf, inf}, {inf, inf}}, 25},
		{[]need{{10, inf}}, 90},
		{[]need{{10, inf}, {inf, inf}}, 45},
		{[]need{{inf, 20}, {inf, 20}}, 60},
	} {
		if got := 100 / (among(100, c.needs) + 1); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("beside %+v, a connection gets %g of 100, want %g", c.needs, got, c.want)
		}
	}
}
