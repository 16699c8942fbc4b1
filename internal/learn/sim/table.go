package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"text/tabwriter"

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

// Table writes the comparison of a learner with a reference over the shipped
// scenarios, and returns its rows. Seeds are as for Compare.
func Table(w io.Writer, l, reference learn.Learner, first, seeds int) []Row {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "\tconns\tregret\tmedian\tp90\tpublished\tmedian\tp90\tratio\tof medians\tgoodput of last 20\tpublished\trecovery p50/p90\tpublished\tfirst use p50/p90\tchanges seen\tmean time over default's\tp95\t\n")
	var rows []Row
	var sum [2]float64
	for i := range Scenarios {
		r := Compare(&Scenarios[i], l, reference, first, seeds)
		rows = append(rows, r)
		a, b := r.Regret[0], r.Regret[1]
		sum[0] += a.Mean
		sum[1] += b.Mean
		fmt.Fprintf(tw, "%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%s\t%s\t%.1f\t%.3f\t%.3f\t\n",
			r.Name, r.Connections, a.Mean, a.Median, a.P90, b.Mean, b.Median, b.P90, r.Ratio(), a.Median/b.Median,
			r.Goodput[0], r.Goodput[1], both(r.Recovery[0]), both(r.Recovery[1]), both(r.FirstUse[0]), r.Changes, r.MeanTime.Median, r.P95Time.Median)
	}
	fmt.Fprintf(tw, "sum\t\t%.1f\t\t\t%.1f\t\t\t%.2f\t\t\t\t\t\t\t\t\n", sum[0], sum[1], sum[0]/sum[1])
	tw.Flush()
	return rows
}

func both(s Spread) string {
	if s == (Spread{}) {
		return "-"
	}
	return fmt.Sprintf("%.0f/%.0f", s.Median, s.P90)
}
