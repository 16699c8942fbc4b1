package guard

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// outcomes are the rewards and goodputs of the connections of an arm, or of the hold-out.
type outcomes struct {
	reward  series // by the objective, of all of them
	goodput series // ln(bytes/s) of those that the path limited; empty if goodput is the objective
	packets
}

func (o *outcomes) add(s *tcp.Sample, reward, goodput learn.Outcome) {
	o.reward.add(s, reward)
	o.goodput.add(s, goodput)
	o.packets.add(s)
}

// fade halves the counts. The number of slices is halved only by time, because it does not
// depend on the number of connections.
func (o *outcomes) fade(old bool) {
	o.reward.fade(old)
	o.goodput.fade(old)
	o.packets.fade()
}

// series is a mean of logarithms.
type series struct {
	ended  float64 // connections
	slices float64 // slices of time with outcomes; for the hold-out the number of outcomes
	slice  int64   // the latest
	nth    int32   // outcomes in it

	weight float64 // of outcomes
	mean   float64
	m2     float64 // sum of squared deviations from it
}

// add adds an outcome. The later one comes in its slice, the less it weighs (learn.SliceWeight).
func (v *series) add(s *tcp.Sample, out learn.Outcome) {
	if !(out.Weight > 0) {
		return
	}
	if s.Kind == tcp.KindClose {
		v.ended++
	}
	if !learn.SameSlice(v.slice, out.Slice) {
		v.slices++
		v.slice, v.nth = out.Slice, 0
	}
	v.nth++
	v.merge(out.Weight*learn.SliceWeight(v.nth), out.Reward, 0)
}

// merge adds another series (Chan, Golub and LeVeque, 1979).
func (v *series) merge(weight, mean, m2 float64) {
	if weight == 0 {
		return
	}
	total := v.weight + weight
	d := mean - v.mean
	v.m2 += m2 + d*d*v.weight*weight/total
	v.mean += d * weight / total
	v.weight = total
}

func (v *series) fade(old bool) {
	v.ended /= 2
	v.weight /= 2
	v.m2 /= 2
	if old {
		v.slices /= 2
	}
}

// variance of the mean. The expected noise counts as expectedN outcomes.
func (v *series) variance() float64 {
	one := (expectedN*expectedNoise*expectedNoise + v.m2) / (expectedN + max(0, v.weight-1))
	return one / v.weight
}

// collapsed reports whether v, of an arm, lies significantly below another series by more
// than a distance, with enough connections of both.
func (v *series) collapsed(other *series, distance float64) bool {
	return v.ended >= leastCollapse && v.slices >= leastSlices && other.ended >= leastHoldOut &&
		other.mean-v.mean-certain*math.Sqrt(v.variance()+other.variance()) >= distance
}
