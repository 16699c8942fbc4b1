package learn

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/integrate/quad"
	"gonum.org/v1/gonum/stat/distuv"
)

func TestCDFIsStudentsT(t *testing.T) {
	for _, dof := range []float64{3, 4, 7, 15, 40} {
		exact := distuv.StudentsT{Mu: 1, Sigma: 0.5, Nu: dof}
		p := posterior{mean: 1, sd: 0.5, dof: dof}
		for x := -8.0; x <= 10; x += 0.1 {
			if got, want := p.cdf(x), exact.CDF(x); math.Abs(got-want) > 0.003 {
				t.Errorf("dof %v, x %v: %v, want %v", dof, x, got, want)
			}
		}
	}
}

func TestUpperIsTheNormalTail(t *testing.T) {
	for z := 0.0; z < 12; z += 0.013 {
		if got, want := upper(z), distuv.UnitNormal.Survival(z); math.Abs(got-want) > 1e-5 {
			t.Errorf("upper(%v) = %v, want %v", z, got, want)
		}
	}
}

// exactShares integrates the same by brute force.
func exactShares(post []posterior) []float64 {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, p := range post {
		lo, hi = min(lo, p.mean-40*p.sd), max(hi, p.mean+40*p.sd)
	}
	share := make([]float64, len(post))
	for i, p := range post {
		f := distuv.StudentsT{Mu: p.mean, Sigma: p.sd, Nu: p.dof}
		const cells = 400
		for c := range cells {
			a := lo + (hi-lo)*float64(c)/cells
			share[i] += quad.Fixed(func(x float64) float64 {
				v := f.Prob(x)
				for j, q := range post {
					if j != i {
						v *= q.cdf(x)
					}
				}
				return v
			}, a, a+(hi-lo)/cells, 8, nil, 0)
		}
	}
	return share
}

func TestBestSharesAreTheProbabilityOfBeingBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 60 {
		post := make([]posterior, 2+rng.IntN(4))
		for i := range post {
			post[i] = posterior{mean: rng.NormFloat64(), sd: math.Exp(rng.NormFloat64() - 1), dof: 3 + 30*rng.Float64()}
		}
		got, want := make([]float64, len(post)), exactShares(post)
		bestShares(got, post)
		for i := range got {
			if math.Abs(got[i]-want[i]) > 0.03 {
				t.Errorf("%+v:\n got %v\nwant %v", post, got, want)
				break
			}
		}
	}
}

func TestBestSharesOfExtremes(t *testing.T) {
	for _, c := range []struct {
		post []posterior
		want []float64
	}{
		{[]posterior{{0, 1, 3}}, []float64{1}},
		{[]posterior{{0, 1, 3}, {0, 1, 3}}, []float64{0.5, 0.5}},
		{[]posterior{{0, 1e-6, 3}, {0, 1, 3}}, []float64{0.5, 0.5}},
		{[]posterior{{0, 0.1, 9}, {500, 0.1, 9}}, []float64{0, 1}},
		{[]posterior{{-900, 0.01, 9}, {-901, 0.01, 9}, {-900, 0.01, 9}}, []float64{0.5, 0, 0.5}},
	} {
		got := make([]float64, len(c.post))
		bestShares(got, c.post)
		for i := range got {
			if math.Abs(got[i]-c.want[i]) > 0.03 {
				t.Errorf("%+v: got %v, want %v", c.post, got, c.want)
			}
		}
	}
}
