package sim

import (
	"math/rand/v2"
	"slices"

	"github.com/tcpilot/tcpilot/internal/learn"
)

// Row compares two learners in one scenario; figures are over seeds.
type Row struct {
	Name        string
	Connections int
	Regret      [2]Spread // of the learner, of the reference
	Goodput     [2]float64
	Recovery    [2]Spread // of all changes; zero if the scenario has none
	FirstUse    [2]Spread
	Changes     float64 // mean number of changes that the learner saw
	// MeanTime and P95Time are of the learner's connections, over the default's.
	MeanTime, P95Time Spread
}

// Spread describes a sample.
type Spread struct{ Mean, Median, P90 float64 }

// Ratio of the learner's mean regret to the reference's.
func (r *Row) Ratio() float64 { return r.Regret[0].Mean / r.Regret[1].Mean }

// Compare runs both learners in a scenario, once per seed, from first on. A seed starts the
// same generator for both.
func Compare(s *Scenario, l, reference learn.Learner, first, seeds int) Row {
	row := Row{Name: s.Name}
	for k, learner := range []learn.Learner{l, reference} {
		var regret, recovered, used, means, p95s []float64
		for seed := first; seed < first+seeds; seed++ {
			r := Run(s, learner, rand.New(rand.NewPCG(uint64(seed), 1)))
			regret = append(regret, r.Regret)
			for i := range r.Recovery {
				recovered = append(recovered, float64(r.Recovery[i]))
				used = append(used, float64(r.FirstUse[i]))
			}
			row.Goodput[k] += r.GoodputLast20 / float64(seeds)
			if k == 0 {
				means, p95s = append(means, r.MeanTime()), append(p95s, r.P95Time())
				row.Changes += float64(r.Changes) / float64(seeds)
				row.Connections = r.Connections
			}
		}
		if k == 0 {
			row.MeanTime, row.P95Time = spread(means), spread(p95s)
		}
		row.Regret[k], row.Recovery[k], row.FirstUse[k] = spread(regret), spread(recovered), spread(used)
	}
	return row
}

func spread(v []float64) Spread {
	if len(v) == 0 {
		return Spread{}
	}
	slices.Sort(v)
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return Spread{sum / float64(len(v)), v[len(v)/2], v[min(len(v)-1, len(v)*9/10)]}
}
