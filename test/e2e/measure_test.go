package e2e

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/lab/link"
	"github.com/tcpilot/tcpilot/internal/lab/load"
)

func TestMeasure(t *testing.T) {
	dur, _ := time.ParseDuration(os.Getenv("D"))
	for _, rate := range []uint64{2e8, 1e9} {
		w := newWorld(t, "far")
		r := w.remotes[0]
		dl, _ := time.ParseDuration(os.Getenv("RTT"))
		q, err := link.NewDelay(w.star.Access, dl)
		must(t, err)
		defer q.Close()
		if rate > 0 {
			must(t, link.SetRate(r.Near, link.Rate{BitsPerSecond: rate}))
		}
		for _, loss := range []float64{0, 0.02, 0.10} {
			w.setLoss(t, r, loss)
			got := map[string][]float64{}
			rtt := map[string][]float64{}
			n := 8
			for range n {
				for _, cc := range []string{"cubic", "bbr", "reno"} {
					b := bulk(t, w.beside, load.BulkSpec{To: at(r.Addr4), Duration: dur, CC: cc})
					got[cc] = append(got[cc], b.Goodput/1e6)
					rtt[cc] = append(rtt[cc], float64(b.SRTT.Microseconds()))
				}
			}
			for _, cc := range []string{"cubic", "bbr", "reno"} {
				g := got[cc]
				slices.Sort(g)
				slices.Sort(rtt[cc])
				var sum, lsum, lsq float64
				for _, x := range g {
					sum += x
					l := math.Log(max(x, 0.01))
					lsum += l
					lsq += l * l
				}
				m := lsum / float64(n)
				fmt.Printf("D=%s rate=%4dM loss=%.2f %-6s mean %7.1f med %7.1f min %7.1f p25 %7.1f p75 %7.1f max %7.1f  sd(ln) %.2f srtt %.0f us\n", dur, rate/1e6, loss, cc, sum/float64(n), g[n/2], g[0], g[n/4], g[3*n/4], g[n-1], math.Sqrt(max(0, lsq/float64(n)-m*m)), rtt[cc][n/2])
			}
		}
	}
}
