package link

import (
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/topology"
)

// BenchmarkLink measures the goodput of one cubic connection through the emulator
// at 20 ms round trip, and of the bare wire, alternately: with offloads and without.
func BenchmarkLink(b *testing.B) {
	for _, offload := range []bool{true, false} {
		name := "packets"
		if offload {
			name = "offload"
		}
		b.Run(name, func(b *testing.B) {
			one, two := newPair(b)
			if !offload {
				must(b, OffloadsOff(one, two))
			}
			var bare, shaped []float64
			for range 3 {
				bare = append(bare, transfer(b, one, two, two.Addr4.Addr(), time.Second))
				shaped = append(shaped, throughDelay(b, one, two, offload))
			}
			slices.Sort(bare)
			slices.Sort(shaped)
			b.ReportMetric(median(bare)/1e6, "bare-Mbit/s")
			b.ReportMetric(median(shaped)/1e6, "20ms-Mbit/s")
			b.ReportMetric(median(shaped)/median(bare), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// throughDelay measures the goodput with 10 ms each way.
func throughDelay(b *testing.B, one, two *topology.End, offload bool) float64 {
	s := Spec{Delay: 10 * time.Millisecond, Offload: offload}
	there, err := Shape(Ends{one, two}, s, Emulator)
	must(b, err)
	back, err := Shape(Ends{two, one}, s, Emulator)
	must(b, err)
	rate := transfer(b, one, two, two.Addr4.Addr(), 4*time.Second)
	b.Logf("%.0f Mbit/s %+v", rate/1e6, counters(b, there))
	must(b, there.Close())
	must(b, back.Close())
	return rate
}
