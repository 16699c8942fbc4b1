package learn

import (
	"math"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// ThompsonOptions tune the default learner. Rewards are natural logarithms: 0.7 is
// a factor of 2. The zero value of a field means its default. Where a field counts
// outcomes, all outcomes of one slice (Outcome.Slice) count as one.
type ThompsonOptions struct {
	HalfLife   time.Duration // in which evidence counts half; 6 h
	Memory     float64       // greatest evidence held of an arm, in outcomes; 40
	Noise      float64       // standard deviation expected of one outcome; 0.4
	NoiseN     float64       // outcomes that this expectation counts for; 4
	Spread     float64       // standard deviation between arms that nothing is known of; 1.5
	Calm       float64       // the same while the default does well (no search, see search.go); 0.25
	ParentMax  float64       // outcomes that the parent's belief counts for at most; 3
	ParentMin  float64       // least standard deviation between paths of one parent; 0.25
	Sharpness  float64       // power of the probability of being best; 3
	Commit     float64       // outcomes after which that power has doubled; 20
	Cut        float64       // share below which an arm gets none by merit; 0.01
	HarmGap    float64       // belief this far below the best is harm; 0.7
	HarmShare  float64       // share of such an arm at most, once tried; 0.02
	Reprobe    time.Duration // time after which an arm that is not used is tried again; 60 s
	ReprobeMax float64       // share that all such trials take at most; 0.03
	TrialPace  time.Duration // in which a trial may take about one observation; 250 ms
	Patience   float64       // own outcomes after which the parent's belief is verified; 4
	Budget     float64       // expected loss of the users' time to arms that are not proven; 0.01
}

// DefaultThompson returns the learner that tcpilot uses by default.
func DefaultThompson() Learner { return NewThompson(ThompsonOptions{}) }

// NewThompson returns a learner that holds, for each arm, a Normal belief with
// learned noise (a Student-t posterior), shrunk toward the parent's, and gives each
// arm a share that grows with the probability that it is the best. It samples from
// those shares in the datapath: Thompson sampling (Thompson 1933) with the draw
// left to the kernel.
//
// What it knows fades, with time and with new outcomes. A change of the path, seen
// in the rewards or in the retransmits of the arm in use (CUSUM), opens all arms of
// the path to new trials.
func NewThompson(opt ThompsonOptions) Learner {
	or := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	if opt.HalfLife == 0 {
		opt.HalfLife = 6 * time.Hour
	}
	if opt.Reprobe == 0 {
		opt.Reprobe = time.Minute
	}
	if opt.TrialPace == 0 {
		opt.TrialPace = 250 * time.Millisecond
	}
	or(&opt.Memory, 40)
	or(&opt.Noise, 0.4)
	or(&opt.NoiseN, 4)
	or(&opt.Spread, 1.5)
	or(&opt.Calm, 0.25)
	or(&opt.Budget, 0.01)
	or(&opt.ParentMax, 3)
	or(&opt.ParentMin, 0.25)
	or(&opt.Sharpness, 3)
	or(&opt.Commit, 20)
	or(&opt.Cut, 0.01)
	or(&opt.HarmGap, 0.7)
	or(&opt.HarmShare, 0.02)
	or(&opt.ReprobeMax, 0.03)
	or(&opt.Patience, 4)
	return thompson{opt}
}

type thompson struct{ opt ThompsonOptions }

const (
	// tried, settled and thrice are Trials of about one, two and three good outcomes in the
	// present state of the path. A single outcome may be an outlier.
	tried   = 0.9
	settled = 1.8
	thrice  = 2.7
	// leastTrial is the least that an outcome counts for as a trial, so that a path
	// of small connections does not explore for ever.
	leastTrial = 1. / 3
	// outlier is how far, in standard deviations, the first outcome of a stale belief must
	// lie from what was believed for the belief to be dropped rather than averaged.
	outlier = 2.5
	// staleAfter is how many outcomes of other arms make a belief stale.
	staleAfter = 20
	// reopened is the evidence that each arm keeps after the reward of one arm changed;
	// hinted is the same if only the losses ended. All evidence is kept if only losses began:
	// a queue that overflows now and then is not a change of the path.
	reopened = 0.5
	hinted   = 5
	// huber bounds the influence of one outcome on a settled mean, in standard
	// deviations: an outlier may have other causes than the arm, such as a stalled virtual machine.
	huber = 3.5
	// leastNoise is the least standard deviation believed of an outcome.
	leastNoise = 0.05
	// gapMemory is the number of outcomes over which Belief.Gap is averaged.
	gapMemory = 8
)

func (thompson) Name() string { return "thompson" }

func (t thompson) Observe(b *Belief, cc tcp.CC, o Outcome) {
	if !o.usable() {
		return
	}
	o.Weight = min(o.Weight, 1)
	a := b.arm(cc)
	another := a.open.holds(o)
	b.note(o, !another)
	if another {
		a.restore()
	}
	t.age(a, o.At)
	v := t.noise(a, t.pooledNoise(b))
	if !another {
		known := a.known()
		if a.Weight > 0 && (a.Trials == 0 || b.Count-a.SeenAt > staleAfter) && t.isOutlier(a, o, v) {
			a.Weight, a.M2, a.Trials, a.Tail = 0, 0, 0, Tail{}
		}
		a.next(o.Slice, known)
	}
	changed := !b.Pooled && t.changed(a, o, v)
	a.open.add(o)
	t.fold(a, v)
	a.learnTail(b, o)
	a.note(b, o)
	if changed {
		t.reopen(b, a, o.At)
	}
}

// isOutlier reports whether an outcome contradicts what is believed of a.
func (t thompson) isOutlier(a *ArmBelief, o Outcome, v float64) bool {
	d := o.Reward - a.Mean
	return d*d > outlier*outlier*one(a, o, v)
}

// one is the variance of a single outcome around the believed mean; v is the variance of an
// observation.
func one(a *ArmBelief, o Outcome, v float64) float64 {
	return v*(1/o.Weight+1/a.Weight) + float64(a.Scatter)/o.Weight
}

// fold adds the open observation to a's belief, which must not contain it yet.
func (t thompson) fold(a *ArmBelief, v float64) {
	x, w := a.open.mean(), a.open.weight()
	if a.Trials >= settled {
		reach := huber * math.Sqrt(v*(1/w+1/a.Weight))
		x = min(max(x, a.Mean-reach), a.Mean+reach)
	}
	a.Mean, a.Weight, a.M2 = fold(a.Mean, a.Weight, a.M2, x, w, t.opt.Memory)
	a.Trials += trialOf(w)
	a.Scatter += float32((a.open.m2/a.open.total - float64(a.Scatter)) * w / a.Weight)
	if more := float32(a.open.n - 1); more > 0 {
		n := float32(a.open.n)
		a.Beyond += more - a.Beyond*min(1, more/scatterMemory)
		a.Within += (float32(a.open.m2/a.open.total)*n/more - a.Within) * min(1, more/a.Beyond)
	}
}

// scatterMemory is the number of outcomes over which their scatter within observations
// is averaged.
const scatterMemory = 200

// trialOf is what an outcome counts for as a trial: 1 from half of the weight of a long
// connection on.
func trialOf(weight float64) float64 {
	if weight >= 0.5 {
		return 1
	}
	return max(weight, leastTrial)
}

func (t thompson) ObserveHoldOut(b *Belief, o Outcome) {
	if !o.usable() {
		return
	}
	h := b.heldOut()
	b.setBack(o.At)
	t.age(h, o.At)
	o.Weight = min(o.Weight, 1)
	h.Mean, h.Weight, h.M2 = fold(h.Mean, h.Weight, h.M2, o.Reward, o.Weight, t.opt.Memory)
	h.learnTail(b, o)
	h.note(b, o)
}

// learnTail updates price, losses, stretch and tail. Each outcome counts by itself there, also within
// one observation.
func (a *ArmBelief) learnTail(b *Belief, o Outcome) {
	rate := float32(o.Weight / max(a.Weight, o.Weight))
	a.Price += (float32(o.Price) - a.Price) * rate
	a.Losses.add(o, float32(1-o.Weight/(lossMemory*max(1, float64(b.AtOnce)))))
	if o.Sent > 0 {
		a.Stretch += (float32(o.Stretch) - a.Stretch) / a.Judged
	}
	a.Tail.add(o.LogSpeed(), a.logSpeed(), o.Weight)
}

// lossMemory, times the number of connections at a time, is the number of outcomes over
// which packets and retransmits are summed.
const lossMemory = 20

// note records the facts of an outcome other than its reward. first says that the outcome
// begins a new observation.
func (b *Belief) note(o Outcome, first bool) {
	b.setBack(o.At)
	if o.AtOnce > 0 {
		b.AtOnce = float32(o.AtOnce)
	}
	if first {
		b.Count++
		if b.Began != 0 {
			b.Gap += (seconds(b.Began, o.At) - b.Gap) / min(float64(b.Count-1), gapMemory)
		}
		b.Began = max(b.Began, o.At)
	}
	b.Last = max(b.Last, o.At)
}

func (a *ArmBelief) note(b *Belief, o Outcome) {
	a.Count++
	if o.Greedy {
		a.Greedy++
	}
	a.SeenAt, a.Last = b.Count, max(a.Last, o.At)
	a.MinRTT, a.Rate = least(a.MinRTT, o.MinRTT), greatest(a.Rate, o.Rate)
	b.MinRTT, b.Rate = least(b.MinRTT, o.MinRTT), greatest(b.Rate, o.Rate)
}

// recent is the number of outcomes over which a minimum or maximum fades if it is not
// reached again. In bpftune they never fade: one exceptional rate, or a former shorter
// route, counts against an arm until bpftune restarts.
const recent = 128

// least updates a recent minimum, microseconds.
func least(was, v uint32) uint32 {
	switch {
	case v == 0:
		return was
	case was == 0 || v <= was:
		return v
	}
	return was + (v-was)/recent
}

// greatest updates a recent maximum, bytes/s.
func greatest(was, v uint64) uint64 {
	switch {
	case v == 0:
		return was
	case v >= was:
		return v
	}
	return was - (was-v)/recent
}

// age brings an arm's evidence up to date.
func (t thompson) age(a *ArmBelief, now int64) {
	if a.Last == 0 || now <= a.Last {
		return
	}
	keep := t.keep(a.Last, now)
	a.Weight *= keep
	a.M2 *= keep
	a.Tail.N *= float32(keep)
	a.Given *= float32(keep)
	a.Loss.Weight *= keep
	a.Loss.M2 *= keep
}

func (t thompson) keep(from, to int64) float64 {
	return math.Exp2(-seconds(from, to) / t.opt.HalfLife.Seconds())
}

// pooledNoise is the variance of one observation around its arm's mean, learned over
// all arms of the path. What it is expected to be is learned as well, and sooner: where
// connections of one slice are alike, slices will be.
func (t thompson) pooledNoise(b *Belief) float64 {
	expected, known := t.opt.NoiseN*t.opt.Noise*t.opt.Noise, t.opt.NoiseN
	m2, n := 0.0, t.opt.NoiseN
	if b != nil {
		for i := range b.Arms {
			a := &b.Arms[i]
			m2 += a.M2
			n += max(0, a.Weight-1)
			if !b.Pooled { // of many paths, it is the noise between them
				expected += float64(a.Within * a.Beyond)
				known += float64(a.Beyond)
			}
		}
	}
	return max((m2+t.opt.NoiseN*expected/known)/n, leastNoise*leastNoise)
}

// noise is the same for one arm, which is shrunk toward that of all.
func (t thompson) noise(a *ArmBelief, pooled float64) float64 {
	v := (t.opt.NoiseN*pooled + a.M2) / (t.opt.NoiseN + max(0, a.Weight-1))
	return max(v, leastNoise*leastNoise)
}

// changed updates the change detectors by an outcome, and reports whether one fired.
func (t thompson) changed(a *ArmBelief, o Outcome, v float64) bool {
	reward, loss := false, false
	novelty := SliceWeight(a.open.n + 1)
	if a.Trials >= settled && a.Weight >= baseline {
		if a.Calm == 0 || a.Up.Sum == 0 && a.Down.Sum == 0 {
			a.Calm = float32(v)
		}
		reward = watch(&a.Up, &a.Down, o.Reward, a.Mean, math.Sqrt(one(a, o, float64(a.Calm))), novelty)
	}
	if o.Loss >= 0 {
		loss = a.Loss.observe(min(o.Loss, 1), o.Weight*novelty, t.opt.Memory)
		if a.Loss.Up.Sum == 0 {
			a.Since = Losses{}
		} else {
			a.Since.add(o, 1)
		}
	}
	return reward || loss
}

// reopen acts on a change of the path that was detected in a's outcomes. What was known of
// the arms may be wrong now; it is kept with little weight, as the prior of the new trials.
func (t thompson) reopen(b *Belief, a *ArmBelief, now int64) {
	b.Changes++
	b.Changed, b.ChangedAt = now, b.Count
	b.Fall = 0
	v := t.noise(a, t.pooledNoise(b))
	left, trials := math.Inf(1), settled
	switch run := latest(&a.Up, &a.Down); {
	case run != nil:
		if run == &a.Down {
			b.Fall = max(0, a.Mean-run.Mean)
		}
		a.Mean, a.Weight = run.Mean, min(run.N, runMax)
		left, trials = reopened, 0
	case a.Loss.Down.Sum >= a.Loss.Up.Sum:
		left, trials = hinted, 0
	}
	weight, losses := min(a.Weight, max(left, runMax)), a.Since
	if losses.Sent == 0 && b.Fall > 0 {
		losses = a.Losses // losses did not rise: they are still valid
	}
	for i := range b.Arms {
		o := &b.Arms[i]
		keep := min(1, left/max(o.Weight, reopened))
		o.open = slice{known: o.known()} // before its trials are taken back
		o.Weight *= keep
		o.M2 *= keep
		o.Tail.N *= float32(keep)
		o.Losses, o.Since = Losses{}, Losses{}
		o.Trials = min(o.Trials, trials)
		o.Up, o.Down = Run{}, Run{}
		o.Loss.restart()
	}
	if trials == 0 {
		a.Weight, a.Trials, a.M2 = weight, min(weight, settled), v*max(0, weight-1)
	}
	a.Losses = losses
}

// searching is for how many observations after a change a path counts as changed at most.
const searching = 32

// Changed reports whether a change of the path was detected recently, and its arms have not
// all been tried again.
func (t thompson) Changed(b *Belief, now int64) bool {
	if b == nil || b.Changes == 0 || b.Count-b.ChangedAt > searching || seconds(b.Changed, now) > t.opt.HalfLife.Seconds() {
		return false
	}
	for i := range b.Arms {
		if b.Arms[i].Trials < tried {
			return true
		}
	}
	return false
}

func (t thompson) StdDev(a *ArmBelief, now int64) float64 {
	prior := t.opt.Spread * t.opt.Spread
	w := a.Weight * t.keep(a.Last, max(now, a.Last))
	return math.Sqrt(1 / (1/prior + w/t.noise(a, t.opt.Noise*t.opt.Noise)))
}
