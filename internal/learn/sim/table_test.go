package sim

import (
	"fmt"
	"io"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/learn"
)

// table writes the comparison of a learner with a reference over the shipped scenarios, and
// returns its rows. Seeds are as for Compare.
func table(w io.Writer, l, reference learn.Learner, first, seeds int) []Row {
	t := console.NewTable("", ">conns", ">regret", ">median", ">p90", ">published", ">median", ">p90", ">ratio", ">of medians",
		">goodput of last 20", ">published", ">recovery p50/p90", ">published", ">first use p50/p90", ">changes seen",
		">mean time over default's", ">p95")
	var rows []Row
	var sum [2]float64
	for i := range Scenarios {
		r := Compare(&Scenarios[i], l, reference, first, seeds)
		rows = append(rows, r)
		a, b := r.Regret[0], r.Regret[1]
		sum[0] += a.Mean
		sum[1] += b.Mean
		t.Row(r.Name, fmt.Sprint(r.Connections), digits(1, a.Mean), digits(1, a.Median), digits(1, a.P90),
			digits(1, b.Mean), digits(1, b.Median), digits(1, b.P90), digits(1, r.Ratio()), digits(2, a.Median/b.Median),
			digits(2, r.Goodput[0]), digits(2, r.Goodput[1]), both(r.Recovery[0]), both(r.Recovery[1]), both(r.FirstUse[0]),
			digits(1, r.Changes), digits(3, r.MeanTime.Median), digits(3, r.P95Time.Median))
	}
	t.Row("sum", "", digits(1, sum[0]), "", "", digits(1, sum[1]), "", "", digits(2, sum[0]/sum[1]))
	t.Write(w, console.Painter{}, "")
	return rows
}

func digits(decimals int, v float64) string { return fmt.Sprintf("%.*f", decimals, v) }

func both(s Spread) string {
	if s == (Spread{}) {
		return "-"
	}
	return fmt.Sprintf("%.0f/%.0f", s.Median, s.P90)
}
