package learn

import (
	"math/bits"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// A transfer of 100 KB spends its time in slow start and one of 10 MB does not: on one
// path, with one arm, their speeds differ by a factor of ten. Left in the rewards, that
// difference would hide what arms do, and small transfers would look like the tail of
// large ones. So the mean effect of each class of sizes is learned for each path, over
// all arms, and taken out (regression adjustment: A. Deng et al., "Improving the
// Sensitivity of Online Controlled Experiments by Utilizing Pre-Experiment Data", WSDM
// 2013). All arms meet the same sizes, so that no arm gains from it.

const (
	// sizeClasses are powers of 4 from 16 KiB on; the last holds all above 64 MiB.
	sizeClasses = 8
	firstSize   = 14 // 2^14 bytes
	// sizeMemory is the number of transfers over which an effect is averaged, and
	// sizePrior the number that "no effect" counts for.
	sizeMemory = 64
	sizePrior  = 4
)

// SizeEffect is how far transfers of one class of sizes lie above the mean of their
// arm, natural log.
type SizeEffect struct {
	Mean float64 `json:"mean"`
	N    float64 `json:"n"`
}

// sizeClass is Outcome.Size of a transfer of so many bytes: 1 below 16 KiB.
func sizeClass(bytes uint64) uint8 {
	return uint8(min(sizeClasses, 1+max(0, (bits.Len64(bytes)-firstSize+1)/2)))
}

// AdjustSize takes out of an outcome's reward what its size does to it on the path b,
// and, for an outcome of an arm (not of the hold-out), learns from it.
func AdjustSize(b *Belief, cc tcp.CC, o *Outcome, holdOut bool) {
	if o.Size == 0 || !o.usable() {
		return
	}
	e := &b.Sizes[o.Size-1]
	wait := o.Wait()
	o.Reward -= e.Mean * e.N / (e.N + sizePrior)
	a := b.find(cc)
	if holdOut || a == nil || a.Weight < baseline {
		return
	}
	e.N = min(e.N+min(o.Weight, 1), sizeMemory)
	e.Mean += (wait - (a.Mean + a.Price) - e.Mean) * min(o.Weight, 1) / e.N
}
